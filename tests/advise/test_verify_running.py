"""Threads, batches, scripts and what training keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.advise.trying import CPU, advised, apart, applied, bench, changed, lively, not_applicable, row, x
from torchgauge.measure import Subject
from torchgauge.verify import Bench, Switches, judge

pytestmark = pytest.mark.usefixtures("one_thread")


def test_settings_are_part_of_the_side_and_not_of_the_process() -> None:
    before = Switches.now()
    place = bench(nn.Linear(2, 2), x(2, 2))

    faster = changed(place, row("tf32-off"))
    single = changed(place, row("thread-oversubscription", code="torch.set_num_threads(1)"))

    assert faster.switches.matmul_precision == "high"
    assert single.switches.threads == 1
    assert Switches.now() == before
    assert "number of threads" in not_applicable(place, row("thread-count"))


def test_a_larger_batch_gives_the_same_samples() -> None:
    model = nn.Sequential(nn.Linear(8, 4)).eval()
    place = bench(model, x(2, 8))
    figures: dict[str, Any] = {"batch": 2, "knee_batch": 8, "peak_activation_bytes_there": 1024}

    side = changed(place, row("batch-at-knee", **figures))

    assert side.samples == 4
    assert side.subject.args[0].shape == (8, 8)
    assert apart(place, side) < 1e-6
    too_much = row("batch-at-knee", **(figures | {"peak_activation_bytes_there": 1 << 60}))
    assert "are free" in not_applicable(place, too_much)


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.Linear(256, 32)) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


def test_checkpointed_blocks_keep_less_for_the_backward_pass() -> None:
    model = Deep()
    place = bench(model, x(512, 32), train=True)
    advice = advised(model, "activation-checkpointing", x(512, 32), mode="train")
    how = applied(place, advice)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    verdict = judge(place, [how], "peak_activation_bytes", 1e-3)

    assert verdict.error.relative == 0
    assert verdict.before is not None
    assert verdict.after is not None
    assert verdict.after < 0.7 * verdict.before
    assert verdict.is_kept
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_script_cannot_be_changed_but_its_surroundings_can() -> None:
    model = lively(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
    place = bench(model, x(1, 3, 8, 8))
    script = torch.jit.trace(model, x(1, 3, 8, 8))
    scripted = Bench(Subject(script, (x(1, 3, 8, 8),), {}, CPU), place.capture, False, 0.02)

    assert "a script module cannot be changed" in not_applicable(
        scripted, advised(model, "conv-bn-fusion", x(1, 3, 8, 8))
    )
    side = changed(scripted, row("thread-count", code="torch.set_num_threads(1)"))
    assert apart(scripted, side) == 0
