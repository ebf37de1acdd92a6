"""Weights of two files: by their figures, and tensor by tensor."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import torchgauge
from torchgauge.report.comparison import WeightsCompared


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


def test_saved_scans_have_the_modules_of_their_names(files: tuple[Path, Path], tmp_path: Path) -> None:
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


def saved(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    torch.save(tensors, path)
    return path


def named(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {
        "stem.weight": (16, 8),
        "blocks.0.fc.weight": (16, 16),
        "blocks.1.fc.weight": (16, 16),
        "head.weight": (4, 16),
    }
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


@pytest.mark.parametrize("lead", ["module.", "_orig_mod.", "model.", "model._orig_mod.", "ema_model."])
def test_wrappers_of_one_side_make_no_difference(lead: str, tmp_path: Path) -> None:
    plain = saved(tmp_path / "plain.pt", named())
    wrapped = saved(tmp_path / "wrapped.pt", {f"{lead}{name}": value for name, value in named().items()})
    for sides in ((plain, wrapped), (wrapped, plain)):
        found = torchgauge.compare(*sides, deep=False, advice=False).data
        assert found.structures[0].changes == ()
        assert found.weights[0] is not None
        assert len(found.weights[0].pairs) == 4
        assert (found.weights[0].moved, found.weights[0].removed, found.weights[0].added) == ([], (), ())
        assert found.weights[0].drift is not None
        assert found.weights[0].drift["identical"] == 4


def test_a_trained_and_wrapped_checkpoint_is_compared_tensor_by_tensor(tmp_path: Path) -> None:
    trained = named() | {"head.weight": 2 * named()["head.weight"]}
    checkpoint = {"epoch": 3, "state_dict": {f"module.{name}": value for name, value in trained.items()}}
    torch.save(checkpoint, tmp_path / "last.pt")
    found = torchgauge.compare(saved(tmp_path / "a.pt", named()), tmp_path / "last.pt", deep=False, advice=False).data
    assert found.structures[0].changes == ()
    assert found.weights[0] is not None
    (moved,) = found.weights[0].moved
    assert moved.name == "head.weight"
    assert moved.shift == pytest.approx(1.0)


def summarized(base: dict[str, torch.Tensor], other: dict[str, torch.Tensor], folder: Path) -> list[tuple[str, str]]:
    paths = saved(folder / "a.pt", base), saved(folder / "b.pt", other)
    found = torchgauge.compare(*paths, deep=False, advice=False).data.structures[0]
    return [(change.state, change.path) for change in found.changes]


def test_renamed_is_what_holds_the_same_values(tmp_path: Path) -> None:
    other = {name.replace("stem", "conv1"): value for name, value in named().items()}
    assert summarized(named(), other, tmp_path) == [("renamed", "stem")]
    rounded = {name: value.bfloat16() for name, value in other.items()}
    assert ("renamed", "stem") in summarized(named(), rounded, tmp_path)


def test_a_tensor_of_the_same_shape_with_other_values_is_not_renamed(tmp_path: Path) -> None:
    other = {name.replace("stem", "conv1"): value for name, value in named().items()}
    other["conv1.weight"] = named(seed=1)["stem.weight"]
    assert summarized(named(), other, tmp_path) == [("added", "conv1"), ("removed", "stem")]


def test_of_several_equal_shapes_that_with_the_same_values_is_the_renamed_one(tmp_path: Path) -> None:
    base = {
        "a.weight": named()["blocks.0.fc.weight"],
        "b.weight": named()["blocks.1.fc.weight"],
        "x.bias": torch.ones(3),
    }
    other = {"d.weight": base["a.weight"], "c.weight": base["b.weight"], "x.bias": torch.ones(3)}
    paths = saved(tmp_path / "a.pt", base), saved(tmp_path / "b.pt", dict(sorted(other.items())))
    found = torchgauge.compare(*paths, deep=False, advice=False).data.structures[0]
    renamed = {(c.state, c.base_path, c.other_path) for c in found.changes}
    assert renamed == {("renamed", "a", "d"), ("renamed", "b", "c")}


def test_a_change_from_nothing_comes_last(tmp_path: Path) -> None:
    base = {"zero.weight": torch.zeros(4, 4), "some.weight": torch.ones(4, 4), "more.weight": torch.ones(4, 4)}
    other = {
        "zero.weight": torch.ones(4, 4),
        "some.weight": 1.5 * torch.ones(4, 4),
        "more.weight": 3 * torch.ones(4, 4),
    }
    paths = saved(tmp_path / "a.pt", base), saved(tmp_path / "b.pt", other)
    found = torchgauge.compare(*paths, deep=False, advice=False).data.weights[0]
    assert found is not None
    assert [pair.name for pair in found.moved] == ["more.weight", "some.weight", "zero.weight"]
