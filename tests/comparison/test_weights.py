"""Weights of two files: by their figures, and tensor by tensor."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import torchgauge
from torchgauge.report.comparison.weights import WeightsCompared


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    torch.manual_seed(0)
    base = {"a.weight": torch.randn(8, 4), "b.weight": torch.randn(4, 8), "gone.weight": torch.ones(2, 2)}
    other = {"a.weight": base["a.weight"], "b.weight": 2 * base["b.weight"], "new.weight": torch.ones(3, 3)}
    paths = tmp_path / "base.safetensors", tmp_path / "other.safetensors"
    save_file(base, paths[0])
    save_file(other, paths[1])
    return paths


def weights(files: tuple[Path, Path]) -> WeightsCompared:
    found = torchgauge.compare(*files, deep=False, advice=False).data.weights[0]
    assert found is not None
    return found


def test_a_tensor_twice_as_large_has_moved_by_all_of_its_norm(files: tuple[Path, Path]) -> None:
    found = weights(files)
    (moved,) = found.moved
    assert moved.name == "b.weight"
    assert moved.shift == pytest.approx(1.0)
    base, other = moved.figures["std"]
    assert base is not None
    assert other == pytest.approx(2 * base)
    assert (found.removed, found.added) == (("gone.weight",), ("new.weight",))


def test_files_are_compared_value_by_value(files: tuple[Path, Path]) -> None:
    drift = weights(files).drift
    assert drift is not None
    assert drift["identical"] == 1
    (row,) = drift["changed"]
    assert row["relative_l2"] == pytest.approx(1.0)
    assert row["cosine"] == pytest.approx(1.0)


def test_the_report_has_both(files: tuple[Path, Path]) -> None:
    text = str(torchgauge.compare(*files, deep=False, advice=False))
    assert "Weights: B against A" in text
    assert "+100.0 %" in text
    assert "1 tensors identical, 1 changed" in text


def test_without_values_there_is_nothing_to_compare(files: tuple[Path, Path]) -> None:
    assert torchgauge.compare(*files, weights=False, advice=False).data.weights == (None,)


def test_saved_scans_have_the_modules_that_their_names_tell(files: tuple[Path, Path], tmp_path: Path) -> None:
    torchgauge.scan_weights(files[0], deep=False).save(tmp_path / "base.json")
    found = torchgauge.compare(tmp_path / "base.json", files[0], files[1], deep=False, advice=False).data
    assert found.structures[0].changes == ()
    assert [(change.state, change.path) for change in found.structures[1].changes] == [
        ("added", "new"),
        ("removed", "gone"),
    ]
    assert found.modules[1].values("params") == (32, 32, 32)


def test_another_precision_is_told_without_a_type_where_there_is_no_code(files: tuple[Path, Path]) -> None:
    from safetensors.torch import load_file

    save_file({name: tensor.half() for name, tensor in load_file(files[0]).items()}, files[1])
    text = str(torchgauge.compare(*files, deep=False, advice=False))
    (line,) = [line for line in text.splitlines() if line.startswith("recast  a ")]
    assert line.split() == ["recast", "a", "float32", "→", "float16", "32"]
    norms = [line.split()[4:6] for line in text.splitlines() if "float32 → float16 " in line and ".weight" in line]
    assert norms
    assert "+0.0 %" not in text
