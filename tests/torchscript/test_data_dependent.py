"""A script that looks at its data cannot be followed without values; its weights are reported all the same."""

from __future__ import annotations

from pathlib import Path

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
    assert any("looks at the values of its data" in warning for warning in found.capture.run.warnings)
