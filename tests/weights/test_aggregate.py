from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from torchgauge.checkpoint import Entry, Role
from torchgauge.facts import TensorSpec
from torchgauge.weights import (
    Aggregate,
    Tally,
    tally_bytes,
    tensor_quantization,
    unstructured_pruning,
    value_statistics,
)


def entry(name: str, array: NDArray[Any], **more: Any) -> Entry:
    return Entry(name, TensorSpec(array.shape, str(array.dtype)), "m.safetensors", 0, array.nbytes, **more)


def counted(array: NDArray[Any]) -> Tally:
    return tally_bytes(np.ascontiguousarray(array).reshape(-1).view(np.uint8), str(array.dtype))


def summary_of(tensors: dict[str, NDArray[Any]], **roles: Role) -> Any:
    found = Aggregate([entry(name, array, role=roles.get(name, Role.PARAMETER)) for name, array in tensors.items()])
    for name, array in tensors.items():
        found.add(name, counted(array))
    return found.summary()


def normal(*shape: int, seed: int = 0, scale: float = 1.0, dtype: str = "float32") -> NDArray[Any]:
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(dtype)


TENSORS = {
    "embed.weight": normal(40, 8, seed=1),
    "layers.0.attn.q.weight": normal(8, 8, seed=2, scale=3),
    "layers.0.attn.q.bias": normal(8, seed=3, scale=0.1),
    "layers.0.mlp.fc1.weight": normal(16, 8, seed=4),
    "layers.1.attn.q.weight": normal(8, 8, seed=5) + 2,
    "layers.1.attn.q.bias": normal(8, seed=6),
    "layers.1.mlp.fc1.weight": normal(16, 8, seed=7),
}
MOMENTS = ("mean", "std", "skewness", "kurtosis", "l1", "l2")


def values_below(prefix: str) -> NDArray[np.float64]:
    parts = [array.ravel() for name, array in TENSORS.items() if name.startswith(prefix)]
    return np.concatenate(parts).astype(np.float64)


def module(summary: dict[str, Any], path: str) -> dict[str, Any]:
    return next(row for row in summary["by_module"] if row["path"] == path)


def check_moments(found: dict[str, Any], values: NDArray[np.float64]) -> None:
    distance = values - values.mean()
    assert found["mean"] == pytest.approx(values.mean(), rel=1e-9, abs=1e-12)
    assert found["std"] == pytest.approx(values.std(), rel=1e-9)
    assert found["skewness"] == pytest.approx((distance**3).mean() / values.std() ** 3, rel=1e-9, abs=1e-12)
    assert found["kurtosis"] == pytest.approx((distance**4).mean() / values.var() ** 2 - 3, rel=1e-9, abs=1e-12)
    assert found["l2"] == pytest.approx(np.linalg.norm(values), rel=1e-9)
    assert (found["min"], found["max"]) == (values.min(), values.max())


@pytest.mark.parametrize("path", ["layers", "layers.0", "layers.1", "layers.1.attn", "layers.0.attn.q"])
def test_a_module_has_the_figures_of_all_its_values_together(path: str) -> None:
    found = module(summary_of(TENSORS), path)
    values = values_below(f"{path}.")
    check_moments(found, values)
    assert found["elements"] == len(values)
    assert found["bytes"] == 4 * len(values)


def test_the_total_is_that_of_one_tensor_with_all_values() -> None:
    total = summary_of(TENSORS)["total"]
    whole = np.concatenate([array.ravel() for array in TENSORS.values()])
    alone = counted(whole)
    assert total["tensors"] == len(TENSORS)
    expected: Any = value_statistics(alone)
    for key, value in expected.items():
        if key in MOMENTS:
            assert total[key] == pytest.approx(value, rel=1e-12, abs=1e-14), key
        elif key in ("nan", "inf", "zeros", "min", "max", "entropy_bits", "entropy_symbol_bits"):
            assert total[key] == value, key
    quantized: Any = tensor_quantization(alone)
    assert total["quantization"]["int8"]["per_tensor"]["sqnr_db"] == pytest.approx(
        quantized["int8"]["per_tensor"]["sqnr_db"], rel=1e-9
    )
    assert total["pruning"] == unstructured_pruning(alone)


def test_kinds_add_up_to_the_total_and_come_in_a_fixed_order() -> None:
    summary = summary_of(TENSORS)
    assert [row["kind"] for row in summary["by_kind"]] == ["attention", "mlp", "embedding", "bias"]
    assert sum(row["elements"] for row in summary["by_kind"]) == summary["total"]["elements"]
    parts = [TENSORS[f"layers.{index}.mlp.fc1.weight"].ravel() for index in (0, 1)]
    check_moments(summary["by_kind"][1], np.concatenate(parts).astype(np.float64))


def test_modules_come_as_a_tree_and_one_with_a_single_tensor_is_its_row() -> None:
    tensors = {f"h.{block}.{name}": normal(2, 2) for block in (10, 9) for name in ("fc.weight", "fc.bias")}
    paths = [row["path"] for row in summary_of(tensors | {"head.weight": normal(2, 2)})["by_module"]]
    assert paths == ["h", "h.9", "h.9.fc", "h.10", "h.10.fc"]


def test_the_order_of_the_tensors_does_not_change_counts() -> None:
    forward, backward = summary_of(TENSORS), summary_of(dict(reversed(TENSORS.items())))
    for key in ("elements", "zeros", "min", "max", "entropy_bits"):
        assert module(forward, "layers")[key] == module(backward, "layers")[key]
    assert module(forward, "layers")["std"] == pytest.approx(module(backward, "layers")["std"], rel=1e-12)


def test_sixteen_bit_types_are_exact_whatever_the_order() -> None:
    halves = {name: array.astype(np.float16) for name, array in TENSORS.items()}
    assert summary_of(halves)["total"] == summary_of(dict(reversed(halves.items())))["total"]


def test_mixed_types_have_the_moments_of_all_values_and_the_entropy_of_what_is_stored() -> None:
    wide, narrow = normal(300, 4, seed=1), normal(100, 4, seed=2, dtype="float16")
    found = summary_of({"a.x": wide, "a.y": narrow})["total"]
    check_moments(found, np.concatenate([wide.ravel(), narrow.ravel()]).astype(np.float64))
    assert found["dtypes"] == ["float32", "float16"]
    bits: list[Any] = [value_statistics(counted(part))["entropy_bits"] for part in (wide, narrow)]
    assert found["entropy_bits"] == pytest.approx((1200 * bits[0] + 400 * bits[1]) / 1600)
    assert found["compressibility"] == pytest.approx(1 - found["entropy_bits"] / 16)


@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_wide_types_add_up(dtype: str) -> None:
    tensors = {f"m.{index}.w": (100 * normal(50, seed=index)).astype(dtype) for index in range(3)}
    check_moments(summary_of(tensors)["total"], np.concatenate(list(tensors.values())).astype(np.float64))


def test_buffers_and_optimizer_state_are_kinds_but_no_part_of_the_total() -> None:
    tensors = {"fc.weight": normal(4, 4), "bn.running_mean": normal(4), "optimizer.0.exp_avg": normal(4, 4)}
    entries = [
        entry(name, array, role=role)
        for (name, array), role in zip(tensors.items(), (Role.PARAMETER, Role.BUFFER, Role.OPTIMIZER), strict=True)
    ]
    found = Aggregate(entries)
    for name, array in tensors.items():
        found.add(name, counted(array))
    summary: Any = found.summary()
    assert summary["total"]["elements"] == 16
    assert [row["kind"] for row in summary["by_kind"]] == ["head", "buffer", "optimizer"]


def test_scales_of_a_packing_are_no_parameters_and_packed_values_count_unpacked() -> None:
    packed, scales, values = np.zeros((4, 2), np.uint8), normal(4), normal(4, 4)
    entries = [entry("q.weight", packed, logical_elements=16), entry("q.weight_scale", scales, logical_elements=0)]
    found = Aggregate(entries)
    found.add("q.weight", counted(values))
    found.add("q.weight_scale", counted(scales))
    summary: Any = found.summary()
    assert (summary["total"]["elements"], summary["total"]["tensors"]) == (16, 1)
    check_moments(summary["total"], values.ravel().astype(np.float64))
    assert summary["total"]["entropy_bits"] is None  # these values are not stored


def test_codes_of_an_unknown_packing_are_counted_and_left_out() -> None:
    plain, codes = normal(4, 4), np.arange(16, dtype=np.uint8).reshape(4, 4)
    found = Aggregate([entry("a.w", plain), entry("a.x", plain), entry("a.qweight", codes, logical_elements=32)])
    for name, array in (("a.w", plain), ("a.x", plain), ("a.qweight", codes)):
        found.add(name, counted(array))
    summary: Any = found.summary()
    assert (summary["total"]["not_unpacked"], summary["total"]["tensors"], summary["total"]["max"]) == (
        1,
        2,
        plain.max(),
    )
    assert module(summary, "a")["tensors"] == 2


def test_a_tensor_that_could_not_be_read_does_not_keep_its_module_open() -> None:
    found = Aggregate([entry(name, array) for name, array in TENSORS.items()])
    for name, array in TENSORS.items():
        if name == "layers.0.attn.q.weight":
            found.leave_out(name)
        else:
            found.add(name, counted(array))
    assert not found._open
    paths = [row["path"] for row in found.summary()["by_module"]]
    assert "layers.0" in paths
    assert "layers.0.attn" not in paths  # one tensor is left


def test_finished_modules_hold_no_counts() -> None:
    names = [f"layers.{index}.fc.{part}" for index in range(6) for part in ("weight", "bias")]
    array = normal(2, 2)
    found = Aggregate([entry(name, array) for name in names])
    most = 0
    for name in names:
        found.add(name, counted(array))
        most = max(most, len(found._open))
    assert most == 3  # layers, layers.N, layers.N.fc


def test_with_very_many_modules_only_the_upper_ones_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchgauge.weights.aggregate.MAX_MODULES", 6)
    tensors = {f"h.{block}.{part}.w{index}": normal(2) for block in range(4) for part in "ab" for index in (1, 2)}
    assert [row["path"] for row in summary_of(tensors)["by_module"]] == ["h", "h.0", "h.1", "h.2", "h.3"]


def test_shared_tensors_count_once_and_nothing_is_no_error() -> None:
    array = normal(3, 3)
    found = Aggregate([entry("a.w", array), entry("b.w", array, shared_with="a.w")])
    found.add("a.w", counted(array))
    assert found.summary()["total"]["elements"] == 9
    empty: Any = Aggregate([]).summary()
    assert empty["total"] == {"tensors": 0, "elements": 0, "bytes": 0, "dtypes": [], "not_unpacked": 0}
    assert empty["by_module"] == empty["by_kind"] == []
