"""Recommendations for single tensors: which rule fires for which figure, and that healthy tensors have none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from torchgauge.advise import TENSOR_RULES, recommend
from torchgauge.checkpoint import Entry
from torchgauge.facts import TensorSpec
from torchgauge.weights import ArrayRows, alignment, structured_pruning
from torchgauge.weights.matrix import matrix_figures

HEALTHY: dict[str, Any] = {
    "name": "blocks.0.mlp.fc1.weight",
    "shape": [768, 512],
    "dtype": "float32",
    "elements": 768 * 512,
    "bytes": 768 * 512 * 2,
    "nan": 0,
    "inf": 0,
    "zeros": 0,
    "subnormal": 0,
    "sparsity": 0.0,
    "min": -0.2,
    "max": 0.19,
    "abs_max": 0.2,
    "duplicate_of": None,
    "stable_rank": 60.0,
    "dead_rows": 0,
    "constant_rows": 0,
    "duplicate_rows": 0,
    "dead_columns": 0,
    "pruning": {"magnitude": {"0.01": 0.058, "0.05": 0.168}, "rows": {"0.01": 0.0}, "two_four_energy": 0.868},
    "quantization": {
        "int8": {
            "per_tensor": {"sqnr_db": 38.1, "max_error": 0.001, "bytes": 768 * 512 + 4},
            "per_channel": {"sqnr_db": 41.2, "max_error": 0.001, "bytes": 768 * 512 + 4 * 768},
        },
        "smallest_30db": "int8",
    },
    "zstd": {"plain": 1.08, "shuffled": 1.17, "sample_bytes": 4096},
}


def fired(**changes: Any) -> dict[str, str]:
    """The rules that fire for a healthy tensor with these changes, and their sentences."""
    texts = recommend(HEALTHY | changes)
    by_rule = {name: " | ".join(rule.find(HEALTHY | changes)) for name, rule in TENSOR_RULES.items()}
    return {name: said for name, said in by_rule.items() if said and said.split(" | ")[0] in texts}


def test_a_healthy_tensor_has_no_recommendations() -> None:
    assert fired() == {}


def test_rules_are_silent_without_their_figures() -> None:
    assert recommend({}) == []
    assert recommend({"name": "w", "shape": [3, 4], "dtype": "float32", "elements": 12, "bytes": 48}) == []
    assert recommend(dict.fromkeys(HEALTHY) | {"shape": [], "dtype": "int8"}) == []


def test_non_finite_values_come_first() -> None:
    nan, inf, *_ = recommend(HEALTHY | {"nan": 3, "inf": 1, "elements": 1024, "duplicate_of": "b"})
    assert "3 of 1,024 values are NaN" in nan
    assert "1 of 1,024 values are infinite" in inf


@pytest.mark.parametrize(
    ("changes", "rule", "figure"),
    [
        ({"duplicate_of": "lm_head.weight"}, "tensor-stored-twice", "768 KiB as lm_head.weight"),
        ({"fits": "bfloat16"}, "tensor-precision", "2.0×"),
        ({"abs_max": 123456.0}, "tensor-precision", "1.235e+05"),
        ({"subnormal": 39322, "dtype": "float16"}, "tensor-subnormal", "10.0 %"),
        ({"min": 1.0, "max": 1.0}, "tensor-constant", "393,216 values are 1"),
        ({"dead_rows": 7}, "tensor-idle-rows", "7 dead rows of 768"),
        ({"constant_columns": 1}, "tensor-idle-rows", "1 constant column of 512"),
        ({"duplicate_rows": 2}, "tensor-idle-rows", "2 duplicate rows of 768"),
        ({"shape": [768, 8, 8, 8], "dead_columns": 5}, "tensor-idle-rows", "5 dead columns of 512"),
        ({"stable_rank": 3.14}, "tensor-low-rank", "3.1 of 512"),
        ({"pruning": {"magnitude": {"0.01": 0.523}}}, "tensor-pruning", "52.3 % of the weights"),
        ({"pruning": {"heads": {"0.01": 0.25}}}, "tensor-pruning", "25.0 % of the heads"),
        ({"pruning": {"two_four_energy": 0.9951}}, "tensor-pruning", "99.51 %"),
        ({"sparsity": 0.8}, "tensor-pruning", "80.0 %"),
        (
            {"zstd": {"plain": 1.9, "shuffled": 2.31}, "bytes": 1 << 20, "quantization": None},
            "tensor-compression",
            "2.3×",
        ),
    ],
)
def test_an_unusual_figure_fires_one_rule(changes: dict[str, Any], rule: str, figure: str) -> None:
    said = fired(**changes)
    assert list(said) == [rule]
    assert figure in said[rule]


def test_a_large_tensor_gets_the_smallest_format_at_the_coarsest_granularity_that_keeps_30_db() -> None:
    size = 4 * HEALTHY["elements"]
    assert "one scale per tensor has an SQNR of 38.1 dB: 4.0×" in fired(bytes=size)["tensor-quantization"]
    figures = HEALTHY["quantization"]["int8"]
    only_fine = {"smallest_30db": "int8", "int8": figures | {"per_tensor": {"sqnr_db": 25.0, "bytes": size // 4 + 4}}}
    said = fired(bytes=size, quantization=only_fine)["tensor-quantization"]
    assert "one scale per channel has an SQNR of 41.2 dB: 4.0×" in said
    assert fired(bytes=size, quantization=only_fine | {"smallest_30db": None}) == {}


def test_a_format_without_error_is_lossless() -> None:
    exact = {"smallest_30db": "int4", "int4": {"per_tensor": {"sqnr_db": None, "max_error": 0.0, "bytes": 1 << 18}}}
    assert "lossless: 8.0×" in fired(bytes=1 << 21, quantization=exact)["tensor-quantization"]


@pytest.mark.parametrize("other", [{"role": "optimizer"}, {"role": "buffer"}, {"logical_elements": 1024}])
def test_only_weights_are_to_shrink(other: dict[str, Any]) -> None:
    shrinkable = {"sparsity": 0.9, "dead_rows": 5, "bytes": 1 << 22}
    assert list(fired(**shrinkable)) == ["tensor-idle-rows", "tensor-pruning", "tensor-quantization"]
    assert fired(**shrinkable, **other) == {}
    assert list(fired(**shrinkable, **other, nan=1)) == ["tensor-non-finite"]


def test_shared_storage_is_not_stored_twice() -> None:
    assert fired(duplicate_of="lm_head.weight", shared_with="lm_head.weight") == {}


def test_outliers_that_need_a_scale_per_channel_are_named() -> None:
    spoiled = {"int8": {"per_tensor": {"sqnr_db": 12.1}, "per_channel": {"sqnr_db": 35.2}}}
    said = fired(quantization=spoiled)["tensor-quantization"]
    assert "12.1 dB" in said
    assert "35.2 dB" in said


def test_a_spectrum_replaces_the_guess_from_the_stable_rank() -> None:
    low = {"low_rank": {"0.01": {"rank": 12, "params_saved": 393216 - 12 * 1280}}}
    full = {"low_rank": {"0.01": {"rank": 500, "params_saved": 0}}}
    said = fired(stable_rank=2.0, spectrum=low)["tensor-low-rank"]
    assert "rank 12 of 512" in said
    assert "378 k of 393 k" in said
    assert fired(stable_rank=2.0, spectrum=full) == {}


def placed(shape: tuple[int, ...], stride: tuple[int, ...] | None = None, offset: int = 0) -> dict[str, Any]:
    spec = TensorSpec(shape, "float32", stride)
    return {"shape": list(shape), "alignment": alignment(Entry("w", spec, "file", offset, spec.nbytes))}


def test_odd_sizes_are_to_be_padded() -> None:
    assert fired(**placed((768, 3072))) == {}
    said = fired(**placed((768, 3071)))["tensor-padding"]
    assert "3,071 columns are not a multiple of 8: pad to 3,072" in said
    assert "16 bytes" in said
    assert fired(**placed((50257, 768)), stable_rank=None)["tensor-padding"].endswith("pad to 50,264")
    assert fired(**placed((64, 3, 7, 7)), stable_rank=None) == {}


def test_a_storage_order_that_wastes_cache_lines_is_named() -> None:
    said = fired(**placed((768, 512), (1, 768)))["tensor-order"]
    assert "3,072 bytes apart (transposed)" in said
    assert "512 cache lines instead of 32" in said


def test_an_offset_that_is_not_a_multiple_of_the_element_size_is_named() -> None:
    assert "a multiple of 2 only" in fired(**placed((768, 512), offset=4098))["tensor-order"]


def test_an_all_zero_tensor_is_named_once() -> None:
    zero = np.zeros((300, 260), np.float32)
    row = {"shape": [300, 260], "dtype": "float32", "elements": zero.size, "zeros": zero.size, "min": 0.0, "max": 0.0}
    row |= {"pruning": {"magnitude": {"0.01": 1.0}, **structured_pruning(ArrayRows("w", zero))}}
    (said,) = recommend(row | {"sparsity": 1.0} | matrix_figures(ArrayRows("w", zero)))
    assert "78,000 values are 0" in said


def test_bfloat16_is_not_recommended_beyond_its_range() -> None:
    assert fired(dtype="float64", abs_max=1e200) == {}


def test_two_four_sparsity_needs_rows_that_are_a_multiple_of_four() -> None:
    assert fired(shape=[393216, 1], pruning={"two_four_energy": 1.0}) == {}
