"""A script that reads tensor values cannot be followed without values: then its weights are reported all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchgauge as tg


class Chooses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.positive = nn.Linear(4, 8)
        self.negative = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        if bool(x.sum() > 0):
            return self.positive(x)
        return self.negative(x)


def test_weights_and_structure_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "chooses.pt"
    torch.jit.script(Chooses()).save(path)
    found = tg.analyze(path, input_size=(2, 4))
    assert found.totals.params == 4 * 8 + 8 + 4 * 2 + 2
    assert {row.path for row in found.modules} == {"", "positive", "negative"}
    assert found.capture.run.mode is None
    assert any("reads tensor values" in warning for warning in found.capture.run.warnings)


class LeavesEarly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.gate = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = torch.relu(block(x))
            if bool(torch.sigmoid(self.gate(x)).mean() > 0.999):
                return x
        while bool(x.norm() > 1):
            x = x * 0.5
        return x


class Packs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 16, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        padded, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.head(padded)


class NeverEnds(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        while bool(x.sum() < 1):
            x = x * 0.5
        return x


CASES: list[Any] = [
    pytest.param(Chooses, (torch.ones(2, 4),), 2 * 4 * 8, id="chooses"),
    pytest.param(Chooses, (-torch.ones(2, 4),), 2 * 4 * 2, id="chooses the other"),
    pytest.param(LeavesEarly, (torch.zeros(2, 8),), 2 * 4 * (8 * 8 + 8), id="leaves early"),
    pytest.param(Packs, (torch.ones(3, 5, 8), torch.tensor([5, 3, 2])), 10 * 64 * 24 + 15 * 48, id="packs"),
]


@pytest.mark.parametrize(("build", "inputs", "macs"), CASES)
def test_with_inference_it_runs_for_real_and_its_ops_are_those_of_that_run(
    build: Any, inputs: tuple[Tensor, ...], macs: int, tmp_path: Path
) -> None:
    model = build().eval()
    torch.jit.script(model).save(tmp_path / "model.pt")
    found = tg.analyze(tmp_path / "model.pt", inputs=inputs, inference=True, budget_s=0.05)
    assert found.totals.macs == macs == tg.analyze(model, inputs=inputs).totals.macs
    assert (found.capture.run.mode, "reads tensor values" in str(found.capture.run.reason)) == ("real", True)
    assert any("outside the isolated process" in warning for warning in found.capture.run.warnings)
    assert found.totals.time_s is not None
    assert found.totals.time_s > 0


def test_an_endless_program_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchgauge.capture.script.compiler.LOOP_LIMIT", 100)
    torch.jit.script(NeverEnds()).save(tmp_path / "model.pt")
    found = tg.analyze(tmp_path / "model.pt", inputs=torch.zeros(2), inference=True)
    assert found.capture.measured is not None
    assert "failed in a real run" in str(found.capture.measured.figures["failure"])
    assert any("did not end" in warning for warning in found.capture.run.warnings)
