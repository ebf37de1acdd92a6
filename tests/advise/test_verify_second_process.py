"""A gain is confirmed only where it holds in a second process too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.advise.trying import row, rule_with, timed_bench, verify
from torchgauge.measure import Settings
from torchgauge.source import Candidate
from torchgauge.verify import Applied, Difference, Job, Paired, Setup, Verdict

HALF = "model.cost = 0.5"
MODEL_FILE = """
import time
from torch import nn

class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.naps = nn.Linear(4, 4), 12

    def forward(self, x):
        for _ in range(self.naps):
            time.sleep(1e-3)
        return self.layer(x)
"""


@dataclass
class Elsewhere:
    """Answers what it is told to, and keeps what it was asked."""

    answer: Any
    asked: Sequence[Job] = ()

    def measure(self, jobs: Sequence[Job]) -> list[Verdict | str] | str:
        self.asked = jobs
        return self.answer if isinstance(self.answer, str) else [self.answer[0]] * len(jobs)


def round_of(ratio: float) -> Verdict:
    time = Paired([math.log(ratio)] * 8, in_second_process=True)
    return Verdict("time_s", time.gain, time.interval, Difference(0.0), 1e-3, time)


def verified(answer: Any) -> tuple[dict[str, Any], Any, Elsewhere]:
    second = Elsewhere(answer)
    with rule_with("halved", HALF):
        rows, plan = verify(timed_bench(), [row("halved")], None, second)
    return dict(rows[0]["verified"]), plan, second


def test_a_gain_that_holds_there_is_confirmed_with_the_figure_of_that_process() -> None:
    found, plan, second = verified([round_of(0.6)])

    assert [job.applied[0].code for job in second.asked] == [HALF]
    assert (found["verdict"], found["kept"], found["one_process"]) == ("confirmed", True, None)
    assert found["time"]["second_process_gain"] == pytest.approx(0.4)
    assert found["time"]["rounds"] == 4
    assert found["ci95"] == pytest.approx([0.4, 0.5])
    assert plan["rules"] == ["halved"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (round_of(1.0), "faster in this process but not in a second one"),
        (round_of(1.3), "faster in this process but not in a second one"),
        ("out of memory", "failed in a second process: out of memory"),
    ],
)
def test_a_gain_that_does_not_hold_there_is_inconclusive(answer: Any, reason: str) -> None:
    found, plan, _ = verified([answer])

    assert (found["verdict"], found["kept"], found["reason"]) == ("inconclusive", False, reason)
    assert found["settled_by"]
    assert plan is None


def test_without_a_second_process_the_last_round_is_here_and_the_report_says_why() -> None:
    found, _, _ = verified("the model cannot be pickled")

    assert (found["verdict"], found["one_process"]) == ("confirmed", "the model cannot be pickled")
    assert (found["time"]["rounds"], found["time"]["second_process_gain"]) == (4, None)


def test_what_does_not_hold_here_is_not_asked_there() -> None:
    second = Elsewhere([round_of(0.5)])
    with rule_with("slower", "model.cost = 2.0"):
        verify(timed_bench(), [row("slower")], None, second)

    assert second.asked == ()


def setup(target: str | nn.Module) -> Setup:
    given = Candidate((torch.ones(2, 4),), {}, None, has_values=True)
    settings = Settings(threads=1)
    return Setup(target, None, False, given, torch.device("cpu"), None, train=False, settings=settings, seconds=0.05)


def test_a_process_builds_the_model_and_measures_it(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(MODEL_FILE)
    fewer, wrong = Applied("model.naps = 1"), Applied("model.layers = model.no_such_layer")
    found = setup(f"{tmp_path / 'slow.py'}:Slow").measure([Job((fewer,), 1e-3), Job((wrong,), 1e-3)])

    assert not isinstance(found, str), found
    faster, failed = found
    assert isinstance(faster, Verdict)
    assert faster.error.relative == 0
    assert faster.time is not None
    assert faster.time.in_second_process
    assert faster.gain is not None
    assert 0.3 < faster.gain < 1  # of twelve sleeps one is left
    assert isinstance(failed, str)
    assert "no_such_layer" in failed


def test_a_model_that_cannot_be_sent_says_so() -> None:
    class Here(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    assert "cannot be pickled" in str(setup(Here()).measure([Job((Applied(""),), 1e-3)]))
