from __future__ import annotations

import builtins
import importlib.util
from typing import Any

import numpy as np
import pytest
import torch

from torchgauge.checkpoint import Entry
from torchgauge.facts import TensorSpec
from torchgauge.weights import alignment, shuffle_bytes, stride_class, zstd_ratios


def entry(tensor: torch.Tensor, offset: int | None = 0) -> Entry:
    spec = TensorSpec(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), tuple(tensor.stride()))
    return Entry("w", spec, "file", offset, spec.nbytes)


def plain(shape: tuple[int, ...], dtype: str = "float32", offset: int | None = 0) -> Entry:
    spec = TensorSpec(shape, dtype)
    return Entry("w", spec, "file", offset, spec.nbytes)


@pytest.mark.parametrize(
    ("offset", "expected"), [(0, 4096), (8, 8), (24, 8), (64, 64), (4096, 4096), (12288, 4096), (7, 1), (None, None)]
)
def test_the_offset_is_aligned_to_its_largest_power_of_two_up_to_a_page(
    offset: int | None, expected: int | None
) -> None:
    assert alignment(plain((4, 4), offset=offset))["offset_alignment"] == expected


@pytest.mark.parametrize(
    ("shape", "dtype", "row_bytes", "aligned"),
    [
        ((10, 3072), "float32", 12288, (True, True, True)),
        ((10, 3071), "float32", 12284, (False, False, False)),
        ((10, 24), "bfloat16", 48, (True, False, False)),
        ((64, 16, 3, 3), "float32", 576, (True, True, False)),
    ],
)
def test_rows_are_aligned_if_their_distance_is(
    shape: tuple[int, ...], dtype: str, row_bytes: int, aligned: tuple[bool, ...]
) -> None:
    found = alignment(plain(shape, dtype))
    assert found["row_bytes"] == row_bytes
    assert found["rows_aligned"] is not None
    assert tuple(found["rows_aligned"].values()) == aligned


@pytest.mark.parametrize("shape", [(), (7,), (1, 7)])
def test_without_a_second_row_there_is_no_distance(shape: tuple[int, ...]) -> None:
    found = alignment(plain(shape))
    assert found["row_bytes"] is None
    assert found["rows_aligned"] is None


def test_each_dimension_says_what_divides_it() -> None:
    assert alignment(plain((50257, 768, 3, 24)))["dimensions"] == [
        {"size": 50257, "divisible_by": 1},
        {"size": 768, "divisible_by": 128},
        {"size": 3, "divisible_by": 1},
        {"size": 24, "divisible_by": 8},
    ]


STRIDED = {
    "contiguous": torch.empty(4, 6),
    "contiguous but for a dimension of one": torch.empty(1, 6, 4)[:, :, :].as_strided((1, 6, 4), (999, 4, 1)),
    "empty": torch.empty(0, 6).t(),
    "scalar": torch.empty(()),
    "transposed": torch.empty(4, 6).t(),
    "channels last": torch.empty(2, 8, 3, 3).to(memory_format=torch.channels_last),
    "columns left out": torch.empty(4, 6)[:, :4],
    "every other element": torch.empty(12)[::2],
    "expanded": torch.empty(1, 6).expand(4, 6),
    "sliding windows": torch.empty(9).unfold(0, 4, 1),
}
CLASSES = {
    "contiguous": "contiguous",
    "contiguous but for a dimension of one": "contiguous",
    "empty": "contiguous",
    "scalar": "contiguous",
    "transposed": "transposed",
    "channels last": "transposed",
    "columns left out": "gaps",
    "every other element": "gaps",
    "expanded": "expanded",
    "sliding windows": "overlapping",
}


@pytest.mark.parametrize("name", STRIDED)
def test_strides_are_classed(name: str) -> None:
    tensor = STRIDED[name]
    assert stride_class(tuple(tensor.shape), tensor.stride()) == CLASSES[name]
    assert alignment(entry(tensor))["contiguous"] is tensor.is_contiguous()


def test_a_missing_stride_means_contiguous() -> None:
    assert alignment(plain((4, 6, 5))) == alignment(entry(torch.empty(4, 6, 5)))


def test_the_order_in_memory_is_told() -> None:
    assert alignment(entry(STRIDED["channels last"]))["memory_order"] == [0, 2, 3, 1]


@pytest.mark.parametrize(
    ("tensor", "step", "touched", "least"),
    [
        (torch.empty(768, 3072), 4, 192, 192),
        (torch.empty(3072, 768).t(), 768 * 4, 3072, 192),
        (torch.empty(100, dtype=torch.float16), 2, 4, 4),
        (torch.empty(200, dtype=torch.float16)[::2], 4, 7, 4),
        (torch.empty(6, 1).expand(6, 100), 0, 1, 7),
        (torch.empty(5, 100, 1), 4, 7, 7),
    ],
)
def test_locality_counts_the_cache_lines_of_a_run(tensor: torch.Tensor, step: int, touched: int, least: int) -> None:
    found = alignment(entry(tensor))
    assert found["step_bytes"] == step
    assert found["cache_lines"] == {"touched": touched, "contiguous": least}


def test_a_tensor_without_elements_has_no_locality() -> None:
    assert alignment(plain((0, 5)))["cache_lines"] is None


def test_zstd_reports_both_orders_of_the_bytes() -> None:
    noise = np.random.default_rng(0).integers(0, 256, 4096, dtype=np.uint8)
    # A constant high byte and a noisy low one: only regrouping halves it.
    sample = np.stack([noise, np.full_like(noise, 7)], axis=1).tobytes()
    found: Any = zstd_ratios(sample, 2)
    assert found is not None
    assert found["sample_bytes"] == 8192
    assert found["shuffled"] == pytest.approx(2, rel=0.05)
    assert 1 < found["plain"] < found["shuffled"]


def test_zstd_of_nothing_is_none() -> None:
    assert zstd_ratios(b"", 4) is None


def test_without_the_package_there_is_no_ratio_but_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec, load = importlib.util.find_spec, builtins.__import__

    def absent(name: str, *args: Any) -> Any:
        return None if name == "zstandard" else find_spec(name, *args)

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        assert name != "zstandard"
        return load(name, *args, **kwargs)

    monkeypatch.setattr("torchgauge.weights.memory_layout.find_spec", absent)
    monkeypatch.setattr(builtins, "__import__", refuse)
    assert zstd_ratios(b"abcd", 4) is None


def test_shuffling_regroups_whole_elements() -> None:
    assert shuffle_bytes(b"a1b2c3x", 2) == b"abc123x"
    assert shuffle_bytes(b"abc", 1) == b"abc"
