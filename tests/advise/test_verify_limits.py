"""Where verification cannot tell: slow runs, random outputs, scripts, an interruption; how long it may take."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.advise.trying import FakeClock, Timed, bench, row, rule_with, timed_bench, verify
from torchgauge.errors import UsageError
from torchgauge.verify import no_plan, read_budget

pytestmark = pytest.mark.usefixtures("one_thread")


class Noisy(Timed):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.rand_like(x)


def test_a_slow_model_gets_the_pairs_it_needs() -> None:
    with rule_with("mine", "model.cost -= 0.5"):
        rows, _ = verify(timed_bench(4.0), [row("mine")])

    assert rows[0]["verified"]["kept"] is True
    assert rows[0]["verified"]["gain"] == pytest.approx(0.125)


def test_what_takes_too_long_to_be_known_is_neither_kept_nor_withdrawn() -> None:
    with rule_with("mine", "model.cost -= 0.5"):
        rows, plan = verify(timed_bench(60.0), [row("mine")])

    assert rows[0]["verified"] is None
    assert "TORCHGAUGE_VERIFY_BUDGET" in rows[0]["unverified"]
    assert plan is None


def test_a_model_that_is_too_slow_to_be_timed_is_not_tried_but_its_bytes_are_counted() -> None:
    place = timed_bench(60.0)
    code = "model.cost -= 0.5; model.factor.data = model.factor.data.half()"
    with rule_with("mine", code):
        verify(place, [])
        rows, _ = verify(place, [row("mine"), row("mine", "param_bytes")])
        verified = rows[1]["verified"]
        clock: Any = place.clock
        before = clock.now
        verify(place, [row("mine")])
        floor = clock.now - before
        verify(place, [row("mine")] * 3)

    assert (verified["gain"], verified["kept"], verified["time"]["pairs"]) == (0.5, True, 0)
    assert clock.now - before == 2 * floor


def test_random_outputs_that_are_drawn_otherwise_are_told_as_such() -> None:
    clock = FakeClock()
    drawn_before = (
        "plain = model.forward\n\ndef other(x):\n    torch.rand(1)\n    return plain(x)\n\nmodel.forward = other\n"
    )
    noisy = bench(Noisy(clock).eval(), torch.arange(1.0, 5.0), clock=clock)
    with rule_with("mine", drawn_before + "model.cost = 0.5\n"), rule_with("same", "model.cost = 0.5\n"):
        rows, _ = verify(noisy, [row("mine"), row("same")])

    assert rows[0]["verified"]["kept"] is False
    assert "random" in rows[0]["verified"]["reason"]
    assert rows[1]["verified"]["kept"] is True
    assert rows[1]["verified"]["output_error"]["relative"] == 0


def test_a_script_is_not_changed_but_switches_are_tried() -> None:
    script = torch.jit.script(torch.nn.Linear(4, 4).eval())
    with rule_with("mine", "model = torch.compile(model)"), rule_with("other", "pass", stage="switches"):
        rows, _ = verify(bench(script, torch.ones(2, 4)), [row("mine"), row("other", "param_bytes")])

    assert rows[0]["verified"] is None
    assert "script" in rows[0]["unverified"]
    assert rows[1]["verified"]["reason"] == "it saves no memory"


def test_what_a_second_round_refuted_stays_so_when_it_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    # Before the second round: alone, in the combination (one also without the other), in its total.
    monkeypatch.setattr(torch, "lucky_times", 4, raising=False)
    monkeypatch.setattr(torch, "sound_times", 3, raising=False)
    lucky = "torch.lucky_times -= 1; model.cost *= 0.5 if torch.lucky_times >= 0 else 1.0"
    sound = "torch.sound_times -= 1\nif torch.sound_times < 0: raise KeyboardInterrupt\nmodel.cost *= 0.75"
    with rule_with("lucky", lucky), rule_with("sound", sound):
        rows, plan = verify(timed_bench(), [row("lucky"), row("sound")])

    assert [found["verified"]["kept"] for found in rows] == [False, True]
    assert plan is not None
    assert (plan["rules"], plan["reason"], plan["code"]) == ([], "interrupted", None)


def test_an_interruption_keeps_what_was_verified() -> None:
    with ExitStack() as stack:
        stack.enter_context(rule_with("first", "model.cost = 0.5"))
        stack.enter_context(rule_with("second", "raise KeyboardInterrupt"))
        stack.enter_context(rule_with("third", "model.cost = 0.5"))
        rows, plan = verify(timed_bench(), [row(name) for name in ("first", "second", "third")])

    assert rows[0]["verified"]["kept"] is True
    assert [found["unverified"] for found in rows[1:]] == ["interrupted"] * 2
    assert plan == no_plan("interrupted")


def test_an_interruption_of_the_plan_is_told() -> None:
    only_once = "if model.cost != 1.0: raise KeyboardInterrupt\nmodel.cost /= 2"
    with rule_with("one", "model.cost /= 4"), rule_with("two", only_once, stage="graph"):
        rows, plan = verify(timed_bench(), [row("one"), row("two")])

    assert all(found["verified"]["kept"] for found in rows)
    assert plan is not None
    assert (plan["rules"], plan["reason"]) == ([], "interrupted")


@pytest.mark.parametrize("text", ["nonsense", "0", "-1", "inf"])
def test_a_budget_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="TORCHGAUGE_VERIFY_BUDGET"):
        read_budget({"TORCHGAUGE_VERIFY_BUDGET": text})


def test_the_budget_is_what_the_environment_says_else_the_default() -> None:
    assert read_budget({"TORCHGAUGE_VERIFY_BUDGET": "2.5"}) == 2.5
    assert read_budget({}) == 4.0
