"""Saved documents have the types that loading requires, for any model and any values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchgauge as tg

ODD = {
    "nan": torch.full((4, 4), float("nan")),
    "inf": torch.full((3,), float("inf")),
    "ends": torch.tensor([1e300, -1e308], dtype=torch.float64),
    "empty": torch.zeros(0, 3),
    "complex": torch.zeros(3, dtype=torch.complex64),
    "scalar": torch.tensor(1.0),
    "bool": torch.ones(5, dtype=torch.bool),
    "int": torch.arange(100).reshape(10, 10),
    "half": torch.zeros(4, 4).half(),
    "expanded": torch.ones(6).expand(4, 6),
    "turned": torch.arange(12.0).reshape(3, 4).T,
}


class Nested(nn.Module):
    """Structures of inputs and outputs, none and several calls, a module that is not called."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(3, 2), nn.Linear(2, 2)

    def forward(self, x: dict[str, Any]) -> dict[str, Any]:
        return {"first": [self.used(x["a"]), (x["b"], None)], "second": {"deep": self.used(x["a"])}, "text": "plain"}


def reloaded(found: tg.Analysis, folder: Path) -> tg.Analysis:
    found.save(folder / "run.json")
    return tg.load(folder / "run.json")


@pytest.mark.parametrize("mode", ["inference", "train"])
def test_an_analysis(tmp_path: Path, mode: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2))
    found = tg.analyze(model, input_size=(2, 3, 8, 8), mode=mode, weights=True, deep=True)
    assert reloaded(found, tmp_path).to_dict() == found.to_dict()


def test_nested_inputs_and_outputs(tmp_path: Path) -> None:
    found = tg.analyze(Nested(), inputs=({"a": torch.ones(1, 3), "b": torch.ones(2, dtype=torch.int64)},))
    assert reloaded(found, tmp_path).to_dict()["modules"] == found.to_dict()["modules"]


def test_values_of_every_kind(tmp_path: Path) -> None:
    torch.save(ODD, tmp_path / "odd.pt")
    torch.save({"nan": torch.ones(4, 4), "inf": torch.ones(4), "new": torch.ones(1)}, tmp_path / "other.pt")
    found = tg.scan_weights(tmp_path / "odd.pt", against=tmp_path / "other.pt", weights=True, deep=True, spectrum=True)
    assert reloaded(found, tmp_path).totals == found.totals


def test_a_training_checkpoint(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": schedule.state_dict()}
    torch.save({**states, "epoch": 3, "loss": float("nan"), "args": {"lr": [0.1, None]}}, tmp_path / "last.pt")
    found = tg.analyze(tmp_path / "last.pt")
    assert reloaded(found, tmp_path).totals == found.totals
