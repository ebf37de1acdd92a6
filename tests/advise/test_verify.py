from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.advise.trying import FakeClock, Timed, bench, row, rule_with, timed_bench, verify
from torchgauge.advise import RULES, load_rules
from torchgauge.verify import (
    REASONS,
    TRANSFORMATIONS,
    Applied,
    Trial,
    load_transformations,
    no_plan,
    transformation,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def tried(code: str, quantity: str = "time_s", **settings: Any) -> dict[str, Any]:
    with rule_with("mine", code, **settings):
        rows, _ = verify(timed_bench(), [row("mine", quantity)])
    found: dict[str, Any] = rows[0]["verified"]
    return found


def test_every_rule_can_be_applied_or_says_why_not() -> None:
    load_rules()
    load_transformations()

    assert set(RULES) == set(TRANSFORMATIONS) | set(REASONS)
    assert not set(TRANSFORMATIONS) & set(REASONS)


def test_advice_that_saves_time_and_keeps_the_outputs_is_kept() -> None:
    found = tried("model.cost = 0.75")

    assert found["gain"] == pytest.approx(0.25)
    assert found["ci95"] == pytest.approx([0.25, 0.25])
    assert found["output_error"] == {"relative": 0.0, "cosine": pytest.approx(1.0), "top1": None}
    assert found["kept"] is True
    assert found["reason"] is None


def test_advice_that_loses_time_is_withdrawn() -> None:
    found = tried("model.cost = 1.5")

    assert found["gain"] == pytest.approx(-0.5)
    assert (found["kept"], found["reason"]) == (False, "it takes 50.0 % more time")


def test_advice_that_changes_nothing_is_withdrawn() -> None:
    assert tried("pass")["reason"] == "no time gain above the noise"


def test_what_a_noisy_machine_leaves_open_says_so() -> None:
    now_and_then = "import itertools\nplain, turns = model.forward, itertools.cycle([0.5, 2.0, 1.0])\n\n"
    code = now_and_then + "def other(x):\n    model.cost = next(turns)\n    return plain(x)\n\nmodel.forward = other\n"

    found = tried(code)

    assert found["ci95"][0] < 0 < found["ci95"][1]
    assert found["reason"].startswith("the machine is too noisy to measure a gain")


def test_advice_that_changes_the_outputs_beyond_its_tolerance_is_withdrawn() -> None:
    faster_but_wrong = "model.cost = 0.5; model.factor.data *= 1.02"

    found = tried(faster_but_wrong)

    assert found["output_error"]["relative"] == pytest.approx(0.02, rel=1e-5)
    assert found["kept"] is False
    assert "the outputs differ by 0.02 of their norm; the limit is 0.001" in found["reason"]
    assert tried(faster_but_wrong, tolerance=0.05)["kept"] is True


@pytest.mark.parametrize(
    "code",
    ["raise RuntimeError('not so')", "model.forward = lambda x: 1 / 0", "this is no code", "model.nothing.here"],
)
def test_a_transformation_that_raises_is_survived_and_told(code: str) -> None:
    with rule_with("mine", code), rule_with("other", "model.cost = 0.5"):
        rows, plan = verify(timed_bench(), [row("mine"), row("other")])

    assert rows[0]["verified"]["kept"] is False
    assert rows[0]["verified"]["reason"].startswith("the changed model fails: ")
    assert rows[1]["verified"]["kept"] is True
    assert plan is not None
    assert plan["rules"] == ["other"]


def test_the_users_model_is_never_changed() -> None:
    place = timed_bench()
    before = copy.deepcopy(place.subject.model.state_dict())
    with rule_with("mine", "model.cost = 0.5; model.factor.data += 1; model.child = torch.nn.Linear(2, 2)"):
        verify(place, [row("mine")])

    assert place.subject.model.cost == 1.0
    assert list(place.subject.model.children()) == []
    assert place.subject.model.state_dict() == before


def test_a_model_that_cannot_be_copied_is_the_only_reason() -> None:
    place = timed_bench()

    class Alone(FakeClock):
        def __deepcopy__(self, memo: Any) -> FakeClock:
            raise TypeError("there is but one")

    place.subject.model.clock = Alone()  # type: ignore[assignment]
    with rule_with("mine", "model.cost = 0.5"):
        rows, plan = verify(place, [row("mine")])

    assert rows[0]["verified"] is None
    assert rows[0]["unverified"] == "the model cannot be copied: TypeError: there is but one"
    assert plan == no_plan(rows[0]["unverified"])


def test_a_model_that_fails_by_itself_is_the_only_reason() -> None:
    place = timed_bench()
    place.subject.model.cost = None  # type: ignore[assignment]
    with rule_with("mine", "model.cost = 0.5"):
        rows, plan = verify(place, [row("mine")])

    assert rows[0]["verified"] is None
    assert rows[0]["unverified"].startswith("the original model fails: TypeError: ")
    assert plan == no_plan(rows[0]["unverified"])


def test_outputs_that_cannot_be_compared_are_the_only_reason() -> None:
    place = timed_bench()
    place.subject.model.factor.data.fill_(float("nan"))  # type: ignore[operator]
    with rule_with("mine", "model.cost = 0.5"):
        rows, plan = verify(place, [row("mine")])

    assert rows[0]["verified"] is None
    assert rows[0]["unverified"] == "the model's outputs are not finite, so they cannot be compared"
    assert plan == no_plan(rows[0]["unverified"])


def test_a_gain_no_larger_than_that_of_a_plain_copy_is_withdrawn() -> None:
    class Lucky(Timed):
        """A copy is faster by 2 % for no reason."""

        def __deepcopy__(self, memo: Any) -> Timed:
            return Timed(self.clock, 0.98 * self.cost).eval()

    clock = FakeClock()
    place = bench(Lucky(clock).eval(), torch.ones(4), clock=clock)
    with rule_with("none", "model.cost *= 1.01"), rule_with("half", "model.cost /= 2"):
        rows, plan = verify(place, [row("none"), row("half")])

    assert rows[0]["verified"]["gain"] == pytest.approx(1 - 0.98 * 1.01)
    assert rows[0]["verified"]["kept"] is False
    assert rows[1]["verified"]["ci95"] == pytest.approx([0.5, 1 - 0.49 * 0.98])
    assert plan is not None
    assert plan["rules"] == ["half"]


def test_a_rule_without_a_transformation_stays_unverified_with_its_reason() -> None:
    rows, _ = verify(timed_bench(), [row("needless-copy"), row("of-a-user")])

    assert [found["verified"] for found in rows] == [None, None]
    assert [found["unverified"] for found in rows] == [REASONS["needless-copy"], "its rule has no transformation"]


def test_settings_of_torch_hold_only_while_the_changed_model_runs() -> None:
    threads = torch.get_num_threads()
    seen: list[int] = []

    class Net(Timed):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(torch.get_num_threads())
            return super().forward(x)

    clock = FakeClock()
    place = bench(Net(clock).eval(), torch.ones(4), clock=clock)
    seen.clear()
    verify(place, [row("thread-count", code=f"torch.set_num_threads({threads + 1})")])

    assert {threads, threads + 1} == set(seen)
    assert seen[0] == threads
    assert torch.get_num_threads() == threads


def test_rules_that_say_the_same_are_measured_once() -> None:
    clock = FakeClock()
    place = bench(Timed(clock).eval(), torch.ones(4), clock=clock)
    code = "model.cost = 0.5"
    with rule_with("one", code), rule_with("two", code):
        before = clock.now
        verify(place, [row("one")])
        alone = clock.now - before
        rows, plan = verify(place, [row("one"), row("two")])

    assert rows[0]["verified"] == rows[1]["verified"]
    assert clock.now - before - alone == pytest.approx(alone)
    assert plan is not None
    assert plan["rules"] == ["one", "two"]


def test_quantities_that_are_told_by_the_time_are_measured_once() -> None:
    code = "model.cost = 0.5"
    with rule_with("time", code), rule_with("bytes", code):
        rows, plan = verify(timed_bench(), [row("time", "time_s"), row("bytes", "bytes_moved")])

    assert rows[0]["verified"] == rows[1]["verified"]
    assert plan is not None
    assert (plan["rules"], plan["tried"]) == (["time", "bytes"], [])


def test_what_fails_for_bytes_is_no_verdict_on_time() -> None:
    assert tried("raise RuntimeError('not so')", "param_bytes")["quantity"] == "param_bytes"


def test_a_user_brings_a_transformation_with_one_function_and_no_two_for_a_rule() -> None:
    def twice_as_fast(trial: Trial) -> Applied:
        return Applied(f"model.cost = {trial.model.cost} / 2")

    transformation("mine")(twice_as_fast)
    try:
        rows, _ = verify(timed_bench(), [row("mine")])
        with pytest.raises(ValueError, match="'mine' is already registered"):
            transformation("mine")(twice_as_fast)
    finally:
        del TRANSFORMATIONS["mine"]
    with pytest.raises(ValueError, match="no stage 'whenever'"):
        transformation("other", stage="whenever")

    assert rows[0]["verified"]["gain"] == pytest.approx(0.5)
