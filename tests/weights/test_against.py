from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from torchgauge.checkpoint import Index, open_checkpoint
from torchgauge.facts import Against, Drift
from torchgauge.weights import compare_checkpoints


def stored(path: Path, tensors: dict[str, torch.Tensor]) -> Index:
    save_file(tensors, path)
    return open_checkpoint(path)


def row_of(found: Against, name: str) -> Drift:
    return next(row for row in found["changed"] if row["name"] == name)


def pair(tmp_path: Path, new: dict[str, torch.Tensor], old: dict[str, torch.Tensor]) -> Against:
    return compare_checkpoints(stored(tmp_path / "new.safetensors", new), stored(tmp_path / "old.safetensors", old))


def test_what_came_went_and_changed_its_shape(tmp_path: Path) -> None:
    old = {"same": torch.ones(3), "gone": torch.ones(2, 2), "resized": torch.ones(4, 2)}
    new = {"same": torch.ones(3), "fresh": torch.ones(5), "resized": torch.ones(6, 2)}
    found = pair(tmp_path, new, old)
    assert found["added"] == [{"name": "fresh", "shape": [5], "dtype": "float32", "bytes": 20}]
    assert found["removed"] == [{"name": "gone", "shape": [2, 2], "dtype": "float32", "bytes": 16}]
    assert found["reshaped"] == [{"name": "resized", "shape": [6, 2], "was": [4, 2]}]
    assert (found["identical"], found["identical_bytes"], found["changed"]) == (1, 12, [])


def test_drift_has_its_closed_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchgauge.weights.rows.BLOCK_VALUES", 1000)
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(50, 60, generator=generator)
    tuned = base.clone()
    tuned[:5] += 0.1 * torch.randn(5, 60, generator=generator)
    row = row_of(pair(tmp_path, {"w": tuned}, {"w": base}), "w")
    a, b = tuned.double().numpy().ravel(), base.double().numpy().ravel()
    assert row["relative_l2"] == pytest.approx(np.linalg.norm(a - b) / np.linalg.norm(b), rel=1e-12)
    assert row["cosine"] == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), rel=1e-12)
    assert row["changed_share"] == pytest.approx(0.1)
    assert row["max_abs_difference"] == np.abs(a - b).max()


def test_the_largest_change_comes_first(tmp_path: Path) -> None:
    old = {name: torch.ones(100) for name in "abc"}
    new = {"a": torch.ones(100) * 1.1, "b": torch.ones(100) * 3, "c": torch.ones(100) * 1.5}
    assert [row["name"] for row in pair(tmp_path, new, old)["changed"]] == ["b", "c", "a"]


def test_other_types_are_compared_by_value(tmp_path: Path) -> None:
    base = torch.randn(40, 30, generator=torch.Generator().manual_seed(1))
    exact = base.bfloat16().float()
    found = pair(tmp_path, {"w": exact.bfloat16(), "v": base.half()}, {"w": exact, "v": base})
    assert found["retyped"] == ["w", "v"]
    assert found["identical"] == 1
    row = row_of(found, "v")
    assert (row["was_dtype"], row["dtype"]) == ("float32", "float16")
    assert 0 < (row["relative_l2"] or 0) < 1e-3


def test_wrappers_of_one_side_do_not_hide_that_it_is_the_same_model(tmp_path: Path) -> None:
    base = {"fc.weight": torch.ones(2, 3), "fc.bias": torch.zeros(2)}
    torch.save({"state_dict": {f"module.{name}": value for name, value in base.items()}, "epoch": 3}, tmp_path / "t.pt")
    found = compare_checkpoints(open_checkpoint(tmp_path / "t.pt"), stored(tmp_path / "old.safetensors", base))
    assert (found["identical"], found["added"], found["removed"]) == (2, [], [])
    prefixed = {f"model.{name}": value for name, value in base.items()}
    assert pair(tmp_path, base, prefixed)["identical"] == 2


@pytest.mark.parametrize(
    "spell",
    [
        "module.{}", "_orig_mod.{}", "model.{}", "model.module._orig_mod.{}", "ema_model.{}", "net.{}", "backbone.{}",
        "_fsdp_wrapped_module.{}",
    ],
)  # fmt: skip
def test_a_wrapper_on_either_side_is_no_difference(spell: str, tmp_path: Path) -> None:
    base = {"fc1.weight": torch.ones(2, 3), "fc1.bias": torch.zeros(2), "fc2.weight": torch.ones(3, 2)}
    wrapped = {spell.format(name): value for name, value in base.items()}
    for sides in ((base, wrapped), (wrapped, base)):
        found = pair(tmp_path, *sides)
        assert (found["identical"], found["added"], found["removed"]) == (3, [], [])


def test_a_wrapper_within_the_names_and_a_counter_beside_them_are_no_difference(tmp_path: Path) -> None:
    base = {"block.fc.weight": torch.ones(2, 3), "block.fc.bias": torch.zeros(2)}
    inner = {name.replace("block.", "block._checkpoint_wrapped_module."): value for name, value in base.items()}
    assert pair(tmp_path, inner, base)["identical"] == 2
    averaged = {f"module.{name}": value for name, value in base.items()} | {"n_averaged": torch.tensor(3)}
    found = pair(tmp_path, averaged, base)
    assert (found["identical"], [row["name"] for row in found["added"]]) == (2, ["n_averaged"])


def test_two_parts_of_a_model_are_not_one_for_their_inner_names(tmp_path: Path) -> None:
    encoder = {"encoder.0.weight": torch.ones(2, 3), "encoder.1.weight": torch.ones(3)}
    decoder = {name.replace("encoder", "decoder"): value for name, value in encoder.items()}
    found = pair(tmp_path, encoder, decoder)
    assert (found["identical"], len(found["added"]), len(found["removed"])) == (0, 2, 2)


def test_not_a_number_is_equal_to_itself_only(tmp_path: Path) -> None:
    nan = float("nan")
    old = torch.tensor([1.0, nan, nan, float("inf"), 2.0])
    new = torch.tensor([1.0, nan, 5.0, float("inf"), 4.0])
    row = row_of(pair(tmp_path, {"w": new}, {"w": old}), "w")
    assert row["changed_share"] == pytest.approx(2 / 5)
    assert row["max_abs_difference"] == 2.0
    assert row["relative_l2"] == pytest.approx(2 / np.sqrt(5))


def test_a_change_from_nothing_has_no_ratio_and_comes_last(tmp_path: Path) -> None:
    old = {"zero": torch.zeros(3), "one": torch.ones(3)}
    found = pair(tmp_path, {"zero": torch.ones(3), "one": torch.ones(3) * 9}, old)
    assert [(row["name"], row["relative_l2"]) for row in found["changed"]] == [("one", 8.0), ("zero", None)]


def test_orders_in_the_file_do_not_matter(tmp_path: Path) -> None:
    weight = torch.randn(4, 3, 2, 2)
    torch.save({"w": weight.to(memory_format=torch.channels_last)}, tmp_path / "new.pt")
    found = compare_checkpoints(
        open_checkpoint(tmp_path / "new.pt"), stored(tmp_path / "old.safetensors", {"w": weight})
    )
    assert found["identical"] == 1


def test_a_truncated_tensor_is_named_and_the_rest_compared(tmp_path: Path) -> None:
    new = stored(tmp_path / "new.safetensors", {"a": torch.ones(4), "b": torch.ones(4)})
    old = stored(tmp_path / "old.safetensors", {"a": torch.ones(4), "b": torch.ones(4)})
    path = tmp_path / "new.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    found = compare_checkpoints(new, old)
    assert [row["name"] for row in found["failures"]] == ["b"]
    assert found["identical"] == 1


def test_a_quantized_model_is_compared_with_its_source(tmp_path: Path) -> None:
    """FP8 codes and a scale for each row."""
    source = torch.randn(32, 64, generator=torch.Generator().manual_seed(2))
    scale = source.abs().amax(dim=1, keepdim=True) / 448
    codes = (source / scale).to(torch.float8_e4m3fn)
    new = {"fc.weight": codes, "fc.weight_scale": scale}
    found = pair(tmp_path, new, {"fc.weight": source})
    row = row_of(found, "fc.weight")
    error = (codes.float() * scale - source).double()
    assert row["relative_l2"] == pytest.approx((error.norm() / source.double().norm()).item(), rel=1e-6)
    assert (found["added"], found["removed"]) == ([], [])


@pytest.mark.parametrize("size", [1e-310, 1e-200, 1e200, 1e307])
def test_values_whose_squares_are_no_numbers_are_compared_as_others(size: float, tmp_path: Path) -> None:
    old = torch.tensor([3.0, 4.0, -2.0], dtype=torch.float64) * size
    row = row_of(pair(tmp_path, {"w": old * 2}, {"w": old}), "w")
    assert row["relative_l2"] == pytest.approx(1.0, rel=1e-12)
    assert row["cosine"] == pytest.approx(1.0, rel=1e-12)
    assert row["max_abs_difference"] == pytest.approx(4 * size, rel=1e-12)


def test_a_difference_beyond_float64_is_null(tmp_path: Path) -> None:
    most = torch.full((2,), 1.7e308, dtype=torch.float64)
    row = row_of(pair(tmp_path, {"w": -most}, {"w": most}), "w")
    assert (row["relative_l2"], row["cosine"], row["max_abs_difference"]) == (2.0, -1.0, None)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_numbers_are_compared_by_their_parts(dtype: torch.dtype, tmp_path: Path) -> None:
    old = torch.complex(torch.arange(1.0, 7.0), -torch.arange(6.0)).to(dtype).reshape(2, 3)
    new = old.clone()
    new[1, 2] += 2j
    torch.save({"same": old, "turned": old.t(), "w": new}, tmp_path / "new.pt")
    torch.save({"same": old, "turned": old.t().contiguous(), "w": old}, tmp_path / "old.pt")
    found = compare_checkpoints(open_checkpoint(tmp_path / "new.pt"), open_checkpoint(tmp_path / "old.pt"))
    assert (found["failures"], found["identical"]) == ([], 2)
    row = row_of(found, "w")
    assert row["relative_l2"] == pytest.approx(2 / float(old.abs().square().sum()) ** 0.5)
    assert (row["changed_share"], row["max_abs_difference"]) == (1 / 12, 2.0)


def test_complex_and_real_numbers_are_not_compared(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(4, dtype=torch.complex64)}, tmp_path / "new.pt")
    torch.save({"w": torch.ones(4)}, tmp_path / "old.pt")
    found = compare_checkpoints(open_checkpoint(tmp_path / "new.pt"), open_checkpoint(tmp_path / "old.pt"))
    assert found["failures"] == [{"name": "w", "reason": "cannot compare complex64 with float32"}]
