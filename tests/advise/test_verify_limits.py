"""Where verification cannot tell: slow runs, random outputs, scripts, an interruption."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.advise.trying import FakeClock, Timed, bench, row, rule_with, timed_bench
from torchgauge.verify.verifying import verify

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
