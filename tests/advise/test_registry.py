from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from torch import nn

import torchgauge
from tests.advise.planted import gain_of, seen
from torchgauge.advise import RULES, Advice, Evidence, Gain, Patch, Where, advise, rule
from torchgauge.advise.registry import merged, ranked
from torchgauge.errors import UsageError

NET = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))


def advice(module: str = "a", low: float = 0.1, high: float = 0.2, quantity: str = "time_s") -> Advice:
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


def test_a_rule_that_raises_is_a_warning_and_the_others_speak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # tests of rules fail at the error itself

    @rule("own-rule", family="mine")
    def find(evidence: Evidence) -> Iterator[Advice]:
        raise IndexError("no such op")

    try:
        found = torchgauge.analyze(NET, input_size=(1, 3, 8, 8))
    finally:
        del RULES["own-rule"]
    assert (
        "the advice 'own-rule' was not looked for: its rule raised IndexError: no such op" in found.capture.run.warnings
    )
    assert "conv-bn-fusion" in [row["rule"] for row in found.advice]


def test_a_second_rule_of_the_same_name_is_refused(own_rule: str) -> None:
    with pytest.raises(ValueError, match="'own-rule' is already registered"):
        rule(own_rule, family="mine")(lambda evidence: iter(()))


def test_a_silenced_rule_says_nothing() -> None:
    evidence = seen(NET, 1, 3, 8, 8)

    assert "conv-bn-fusion" in names(evidence)
    assert "conv-bn-fusion" not in names(evidence, "conv-bn-fusion")


def test_silencing_what_is_no_rule_names_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"no rule 'conv-bn'; did you mean .*conv-bn-fusion"):
        advise(seen(NET, 1, 3, 8, 8), ["conv-bn"])


def test_equal_advice_becomes_one_with_its_places_and_the_sum_of_gains() -> None:
    [found] = merged([advice("a"), advice("b", 0.2, 0.4), advice("c")])

    assert found.where.module == "b"
    assert (gain_of(found).low, gain_of(found).high) == pytest.approx((0.4, 0.8))
    assert found.evidence["count"] == 3
    assert [place["module"] for place in found.evidence["places"]] == ["a", "b", "c"]


def test_a_sum_of_gains_is_not_more_than_all() -> None:
    [found] = merged([advice("a", 0.6, 0.9), advice("b", 0.6, 0.9)])

    assert (gain_of(found).low, gain_of(found).high) == (1.0, 1.0)


def test_gains_at_the_peak_do_not_add_up() -> None:
    [found] = merged([advice(name, 0.1, 0.3, "peak_activation_bytes") for name in "ab"])

    assert gain_of(found).high == 0.3


def test_merged_advice_is_as_sure_as_its_least_sure_place() -> None:
    [found] = merged([advice("a"), replace(advice("b"), confidence="low")])

    assert found.confidence == "low"


def order(*found: Advice, all_advice: bool = False) -> list[str | None]:
    return [each.where.module for each in ranked(found, all_advice=all_advice)]


def test_time_comes_first_by_the_lower_end_then_by_the_middle_then_memory_and_size() -> None:
    size, memory = advice("size", 0.9, 0.9, "stored_bytes"), advice("memory", 0.5, 0.9, "peak_activation_bytes")
    wide, sure, middle = advice("wide", 0.1, 0.9), advice("sure", 0.3, 0.4), advice("middle", 0.1, 0.3)

    assert order(size, memory, middle, wide, sure) == ["sure", "wide", "middle", "size", "memory"]


def test_a_bug_comes_before_any_gain() -> None:
    bug = replace(advice("bug"), kind="bug", expected_gain=None)

    assert order(advice("gain", 0.9, 0.9), bug) == ["bug", "gain"]


def test_a_range_that_starts_at_nothing_is_never_first() -> None:
    maybe, memory = advice("maybe", 0.0, 0.9), advice("memory", 0.06, 0.06, "param_bytes")

    assert order(maybe, memory) == ["memory", "maybe"]
    assert order(maybe) == []
    assert order(maybe, all_advice=True) == ["maybe"]


def test_small_gains_are_left_out_unless_asked_for() -> None:
    small, some = advice("small", 0.015, 0.03), advice("some", 0.03, 0.06)
    little, more = advice("little", 0.04, 0.04, "param_bytes"), advice("more", 0.06, 0.06, "param_bytes")

    assert order(small, some, little, more) == ["some", "more"]
    assert order(small, some, little, more, all_advice=True) == ["some", "small", "more", "little"]
    # What was measured needs no margin, and to run a patch is less work than to edit the source.
    for share, is_patch, is_shown in ((0.016, False, True), (0.012, False, False), (0.012, True, True)):
        piece = advice("measured", share, share)
        measured = replace(piece, expected_gain=replace(gain_of(piece), basis="measured"))
        changed = replace(measured, change=Patch("model.half()") if is_patch else None)
        assert order(changed) == (["measured"] if is_shown else [])


def test_only_a_bug_may_lack_a_gain() -> None:
    with pytest.raises(ValueError, match="not a bug, so it needs an expected gain"):
        replace(advice(), expected_gain=None)


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
        "rule", "kind", "where", "evidence", "recommendation", "code", "code_kind", "expected_gain", "risk",
        "confidence", "verified",
    ]  # fmt: skip
    assert row["where"] == {"module": "a", "ops": [], "weight": None, "source": None, "line": None}
    assert list(row["expected_gain"] or ()) == ["quantity", "low", "high", "seconds", "basis", "how"]
    assert row["verified"] is None
