from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from torch import nn

from tests.advise.planted import seen
from torchgauge.advise import RULES, Advice, Evidence, Gain, Where, advise, rule
from torchgauge.advise.merging import merged
from torchgauge.advise.registry import ranked
from torchgauge.errors import UsageError

NET = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))


def advice(module: str = "a", low: float = 0.1, high: float = 0.2, quantity: str = "bytes_moved") -> Advice:
    gain = Gain(quantity, low, high, "counted")
    return Advice("r", Where(module), {"bytes": 8}, "do it", None, gain, "none", "high")


@pytest.fixture
def own_rule() -> Iterator[str]:
    @rule("own-rule", family="mine")
    def find(evidence: Evidence) -> Iterator[Advice]:
        yield replace(advice(), rule="own-rule", evidence={"ops": len(evidence.forward)})

    yield "own-rule"
    del RULES["own-rule"]


def names(evidence: Evidence, *silence: str) -> list[str]:
    return [found.rule for found in advise(evidence, silence)]


def test_a_rule_of_the_user_is_one_decorated_function(own_rule: str) -> None:
    found = next(a for a in advise(seen(NET, 1, 3, 8, 8)) if a.rule == own_rule)

    assert found.evidence == {"ops": len(seen(NET, 1, 3, 8, 8).forward)}


def test_a_second_rule_of_the_same_name_is_refused(own_rule: str) -> None:
    with pytest.raises(ValueError, match="two rules 'own-rule'"):
        rule(own_rule, family="mine")(lambda evidence: iter(()))


def test_a_silenced_rule_says_nothing() -> None:
    evidence = seen(NET, 1, 3, 8, 8)

    assert "conv-bn-fusion" in names(evidence)
    assert "conv-bn-fusion" not in names(evidence, "conv-bn-fusion")


def test_silencing_what_is_no_rule_names_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"no rule 'conv-bn'; there are: .*conv-bn-fusion"):
        advise(seen(NET, 1, 3, 8, 8), ["conv-bn"])


def test_equal_advice_becomes_one_with_its_places_and_the_sum_of_gains() -> None:
    [found] = merged([advice("a"), advice("b", 0.2, 0.4), advice("c")])

    assert found.where.module == "b"
    assert (found.expected_gain.low, found.expected_gain.high) == pytest.approx((0.4, 0.8))
    assert found.evidence["count"] == 3
    assert [place["module"] for place in found.evidence["places"]] == ["a", "b", "c"]


def test_a_sum_of_gains_is_not_more_than_all() -> None:
    [found] = merged([advice("a", 0.6, 0.9), advice("b", 0.6, 0.9)])

    assert (found.expected_gain.low, found.expected_gain.high) == (1.0, 1.0)


def test_gains_at_the_peak_do_not_add_up() -> None:
    [found] = merged([advice(name, 0.1, 0.3, "peak_activation_bytes") for name in "ab"])

    assert found.expected_gain.high == 0.3


def test_merged_advice_is_as_sure_as_its_least_sure_place() -> None:
    [found] = merged([advice("a"), replace(advice("b"), confidence="low")])

    assert found.confidence == "low"


def test_the_largest_gain_comes_first_and_doubt_takes_from_it() -> None:
    small, large = advice("small"), replace(advice("large", 0.3, 0.4), recommendation="else")
    doubtful = replace(advice("doubtful", 0.3, 0.4), confidence="low", recommendation="maybe")

    assert [found.where.module for found in ranked([small, doubtful, large])] == ["large", "small", "doubtful"]


@pytest.mark.parametrize(("low", "high"), [(-0.1, 0.5), (0.5, 0.4), (0.5, 1.1)])
def test_a_gain_is_a_range_of_shares(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="range of shares"):
        Gain("time_s", low, high, "guessed")


def test_an_unknown_quantity_is_refused() -> None:
    with pytest.raises(ValueError, match="no quantity 'speed'"):
        Gain("speed", 0, 1, "guessed")


def test_the_row_has_the_members_of_the_contract_and_nothing_verified() -> None:
    row = advice().member()

    assert list(row) == [
        "rule", "where", "evidence", "recommendation", "code", "expected_gain", "risk", "confidence", "verified",
    ]  # fmt: skip
    assert row["where"] == {"module": "a", "ops": [], "weight": None}
    assert row["verified"] is None
