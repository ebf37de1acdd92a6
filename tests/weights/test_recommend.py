from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from torchgauge.checkpoint.index import Entry
from torchgauge.facts import TensorSpec
from torchgauge.weights.matrix import examine
from torchgauge.weights.memory_layout import alignment
from torchgauge.weights.pruning import structured
from torchgauge.weights.recommend import recommendations
from torchgauge.weights.rows import ArrayRows

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


def said(**changes: Any) -> list[str]:
    return recommendations(HEALTHY | changes)


def test_nothing_is_said_of_a_healthy_tensor() -> None:
    assert said() == []


def test_nothing_is_said_without_figures() -> None:
    assert recommendations({}) == []
    assert recommendations({"name": "w", "shape": [3, 4], "dtype": "float32", "elements": 12, "bytes": 48}) == []
    assert recommendations(dict.fromkeys(HEALTHY) | {"shape": [], "dtype": "int8"}) == []


def test_values_that_are_not_finite_come_first() -> None:
    found = said(nan=3, inf=1, elements=1024, duplicate_of="b")
    assert found[:2] == [
        "NaN in 3 of 1,024 values: not usable as stored",
        "infinity in 1 of 1,024 values: not usable as stored",
    ]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"duplicate_of": "lm_head.weight"}, "the same 768 KiB as lm_head.weight: one of them is enough"),
        (
            {"fits": "bfloat16"},
            "stored as float32, but every value fits bfloat16: 2.0× smaller without loss",
        ),
        ({"abs_max": 123456.0}, "the largest magnitude 1.235e+05 is beyond float16 (65,504): bfloat16 holds it"),
        (
            {"subnormal": 39322, "dtype": "float16"},
            "10.0 % of the values are subnormal in float16 and lost bits: bfloat16 has the range",
        ),
        ({"min": 1.0, "max": 1.0}, "all 393,216 values are 1: nothing was learned here, or it was never loaded"),
        ({"dead_rows": 7}, "7 dead rows of 768: removable"),
        ({"constant_columns": 1}, "1 constant column of 512: each is one number"),
        ({"duplicate_rows": 2}, "2 duplicate rows of 768: each repeats an earlier one"),
        ({"shape": [768, 8, 8, 8], "dead_columns": 5}, "5 dead columns of 512: removable"),
        ({"stable_rank": 3.14}, "stable rank 3.1 of 512: few directions dominate; --spectrum tells more"),
        ({"pruning": {"magnitude": {"0.01": 0.523}}}, "52.3 % of the weights can go at 1 % error"),
        ({"pruning": {"heads": {"0.01": 0.25}}}, "25.0 % of the heads can go at 1 % error"),
        (
            {"pruning": {"two_four_energy": 0.9951}},
            "2:4 sparsity keeps 99.51 % of the energy: sparse tensor cores run it at twice the rate",
        ),
        ({"sparsity": 0.8}, "80.0 % of the weights are zero: a sparse format stores fewer bytes"),
        (
            {"zstd": {"plain": 1.9, "shuffled": 2.31}, "bytes": 1 << 20, "quantization": None},
            "zstd makes it 2.3× smaller without loss with its bytes regrouped",
        ),
    ],
)
def test_a_figure_that_stands_out_is_said(changes: dict[str, Any], expected: str) -> None:
    assert said(**changes) == [expected]


def test_a_large_tensor_is_told_the_smallest_format_at_the_coarsest_granularity_that_keeps_it() -> None:
    size = 4 * HEALTHY["elements"]
    assert said(bytes=size) == ["int8 per tensor keeps 38.1 dB: 4.0× smaller"]
    figures = HEALTHY["quantization"]["int8"]
    only_fine = {"smallest_30db": "int8", "int8": figures | {"per_tensor": {"sqnr_db": 25.0, "bytes": size // 4 + 4}}}
    assert said(bytes=size, quantization=only_fine) == ["int8 per channel keeps 41.2 dB: 4.0× smaller"]
    assert said(bytes=size, quantization=only_fine | {"smallest_30db": None}) == []


def test_a_format_that_holds_every_value_is_said_to_lose_nothing() -> None:
    exact = {"smallest_30db": "int4", "int4": {"per_tensor": {"sqnr_db": None, "max_error": 0.0, "bytes": 1 << 18}}}
    assert said(bytes=1 << 21, quantization=exact) == ["int4 per tensor loses nothing: 8.0× smaller"]


@pytest.mark.parametrize("other", [{"role": "optimizer"}, {"role": "buffer"}, {"logical_elements": 1024}])
def test_what_is_no_weight_is_not_told_to_shrink(other: dict[str, Any]) -> None:
    shrinkable = {"sparsity": 0.9, "dead_rows": 5, "bytes": 1 << 22}
    assert len(said(**shrinkable)) == 3
    assert said(**shrinkable, **other) == []
    assert said(**shrinkable, **other, nan=1) == ["NaN in 1 of 393,216 values: not usable as stored"]


def test_shared_storage_is_not_stored_twice() -> None:
    assert said(duplicate_of="lm_head.weight", shared_with="lm_head.weight") == []


def test_outliers_that_spoil_one_scale_are_named() -> None:
    spoiled = {"int8": {"per_tensor": {"sqnr_db": 12.1}, "per_channel": {"sqnr_db": 35.2}}}
    expected = "one int8 scale for all keeps 12.1 dB only, one per channel 35.2 dB: scale per channel"
    assert said(quantization=spoiled) == [expected]


def test_a_spectrum_replaces_the_guess_of_the_stable_rank() -> None:
    low = {"low_rank": {"0.01": {"rank": 12, "params_saved": 393216 - 12 * 1280}}}
    full = {"low_rank": {"0.01": {"rank": 500, "params_saved": 0}}}
    expected = "rank 12 of 512 has 1 % error: two factors save 378 k of 393 k parameters"
    assert said(stable_rank=2.0, spectrum=low) == [expected]
    assert said(stable_rank=2.0, spectrum=full) == []


def placed(shape: tuple[int, ...], stride: tuple[int, ...] | None = None, offset: int = 0) -> dict[str, Any]:
    spec = TensorSpec(shape, "float32", stride)
    return {"shape": list(shape), "alignment": alignment(Entry("w", spec, "file", offset, spec.nbytes))}


def test_odd_sizes_are_to_be_padded() -> None:
    assert said(**placed((768, 3072))) == []
    assert said(**placed((768, 3071))) == [
        "3,071 columns do not divide by 8: pad to 3,072, then rows also start on 16-byte boundaries"
    ]
    assert said(**placed((50257, 768)), stable_rank=None) == ["50,257 rows do not divide by 8: pad to 50,264"]
    assert said(**placed((64, 3, 7, 7)), stable_rank=None) == []


def test_an_order_that_wastes_cache_lines_is_said() -> None:
    assert said(**placed((768, 512), (1, 768))) == [
        "stored with elements 3,072 bytes apart (transposed): a row touches 512 cache lines instead of 32"
    ]


def test_an_offset_that_does_not_fit_the_type_is_said() -> None:
    assert said(**placed((768, 512), offset=4098)) == [
        "its offset in the file divides by 2 only, not by its type's size: it cannot be mapped in place"
    ]


def test_an_all_zero_tensor_is_said_once() -> None:
    zero = np.zeros((300, 260), np.float32)
    row = {"shape": [300, 260], "dtype": "float32", "elements": zero.size, "zeros": zero.size, "min": 0.0, "max": 0.0}
    expected = ["all 78,000 values are 0: nothing was learned here, or it was never loaded"]
    row |= {"pruning": {"magnitude": {"0.01": 1.0}, **structured(ArrayRows("w", zero))}}
    assert recommendations(row | {"sparsity": 1.0} | examine(ArrayRows("w", zero))) == expected


def test_bfloat16_is_not_said_to_hold_what_it_does_not() -> None:
    assert said(dtype="float64", abs_max=1e200) == []


def test_rows_that_are_no_whole_fours_are_no_case_for_2_4_sparsity() -> None:
    assert said(shape=[393216, 1], pruning={"two_four_energy": 1.0}) == []
