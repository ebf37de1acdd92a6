"""Code joined with stored weights: what the code knows better than the names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchgauge as tg
from torchgauge.errors import TargetError, UnpicklingWarning


class FrozenNorm(nn.Module):
    """Like torchvision's `FrozenBatchNorm2d`: its weight and bias are buffers, which the names do not show."""

    def __init__(self, width: int) -> None:
        super().__init__()
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.get_buffer("weight") + self.get_buffer("bias")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(3, 8), FrozenNorm(8)

    def forward(self, x: torch.Tensor) -> Any:
        return self.norm(self.inner(x))


WEIGHTS = 3 * 8 + 8


def save(folder: Path, prefix: str = "") -> Path:
    path = folder / "state.pt"
    torch.save({f"{prefix}{name}": tensor for name, tensor in Net().state_dict().items()}, path)
    return path


def test_without_code_a_frozen_norm_counts_as_parameters(tmp_path: Path) -> None:
    scan = tg.scan_weights(save(tmp_path))
    assert scan.totals.params == WEIGHTS + 2 * 8
    assert {row.module_type for row in scan.weights} == {None}


@pytest.mark.parametrize("prefix", ["", "module.", "model.", "module.model."])
def test_the_code_determines_modules_and_roles(tmp_path: Path, prefix: str) -> None:
    scan = tg.scan_weights(save(tmp_path, prefix), code=Net())
    assert scan.totals.params == scan.totals.logical_params == WEIGHTS
    assert [(row.name.removeprefix(prefix), row.role, row.module, row.module_type) for row in scan.weights] == [
        ("inner.weight", "parameter", "inner", "Linear"),
        ("inner.bias", "parameter", "inner", "Linear"),
        *(
            (f"norm.{name}", "buffer", "norm", "FrozenNorm")
            for name in ("weight", "bias", "running_mean", "running_var")
        ),
    ]
    assert [(row.path, row.type) for row in scan.modules] == [("", "Net"), ("inner", "Linear"), ("norm", "FrozenNorm")]
    assert scan.capture.run.warnings == ()


def test_an_analysis_with_code_has_the_same_roles(tmp_path: Path) -> None:
    path = save(tmp_path)
    a = tg.analyze(path, code=Net(), input_size=(1, 3))
    assert (a.totals.params, a.totals.logical_params) == (WEIGHTS, WEIGHTS)
    assert a.capture.stored == tg.scan_weights(path, code=Net()).capture.stored


def test_the_optimizer_belongs_to_no_module(tmp_path: Path) -> None:
    state = {"model": Net().state_dict(), "optimizer": {"state": {0: {"exp_avg": torch.ones(8, 3)}}}}
    torch.save(state, tmp_path / "last.pt")
    rows = tg.scan_weights(tmp_path / "last.pt", code=Net()).weights
    assert [(row.module, row.module_type) for row in rows if row.role == "optimizer"] == [(None, None)]


def test_tensors_that_only_one_side_has_are_reported(tmp_path: Path) -> None:
    path = save(tmp_path)
    state = torch.load(path)
    torch.save({name: state[name] for name in state if name != "inner.bias"} | {"extra": torch.ones(1)}, path)
    (warning,) = tg.scan_weights(path, code=Net()).capture.run.warnings
    assert "1 not in the file:\n  inner.bias" in warning
    assert "1 not in the code:\n  extra" in warning


def test_code_of_other_shapes_is_refused(tmp_path: Path) -> None:
    other = Net()
    other.inner = nn.Linear(5, 8)
    with pytest.raises(
        TargetError, match=r"1 with a different shape:\n  inner\.weight: 8×3 in the file, 8×5 in the code"
    ):
        tg.scan_weights(save(tmp_path), code=other)


def test_code_is_refused_for_a_file_without_tensors(tmp_path: Path) -> None:
    torch.save({"epoch": 3}, tmp_path / "empty.pt")
    with pytest.raises(TargetError, match="does not fit"):
        tg.scan_weights(tmp_path / "empty.pt", code=Net())


def test_a_module_that_is_really_unpickled_is_announced_first(tmp_path: Path) -> None:
    torch.save({"model": Net()}, tmp_path / "whole.pt")
    with pytest.warns(UnpicklingWarning, match=r"unknown: .*test_joining\.Net\(\)"):
        scan = tg.scan_weights(tmp_path / "whole.pt", allow_pickle=True)
    assert scan.capture.target.format == "torch, unpickled"
    assert scan.to_dict()["pickle"]["executed"]
    assert {row.module_type for row in scan.weights} == {"Linear", "FrozenNorm"}


def test_a_scan_with_code_survives_a_file(tmp_path: Path) -> None:
    a = tg.analyze(save(tmp_path), code=Net(), input_size=(1, 3))
    a.save(tmp_path / "run.json")
    assert tg.load(tmp_path / "run.json").capture.stored == a.capture.stored
