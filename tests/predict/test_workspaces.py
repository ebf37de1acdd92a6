"""Memory of kernels against what an H200 allocated (torch 2.11, cuDNN 9.19; `probes` of benchmarks/fit_device.py)."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from torchgauge.predict.convolutions import Convolution, _table, estimate, workspace
from torchgauge.predict.workspaces import (
    Chip,
    Recurrent,
    attention_backward_cudnn,
    attention_backward_efficient,
    embedding_backward,
    reduction,
)

H200 = Chip(132, (9, 0))


@pytest.mark.parametrize(
    ("shape", "dims", "taken"),
    [
        ((8192, 4096), [0], [138412032, 128]),  # the bias gradient of a linear layer
        ((16384, 1024), [0], [134217728, 32]),
        ((3125, 96), [0], [614400, 8]),
        ((8388608,), [], [2112, 4]),
        ((64, 64), [1], []),
    ],
)
def test_a_reduction_allocates_partial_results(shape: tuple[int, ...], dims: list[int], taken: list[int]) -> None:
    stride = (shape[1], 1) if len(shape) == 2 else (1,)
    assert reduction(H200, shape, stride, dims) == taken


def test_a_smaller_chip_spreads_a_reduction_over_fewer_blocks() -> None:
    small = reduction(Chip(58, (8, 9), 1536), (8192, 4096), (4096, 1), [0])
    assert isinstance(small[0], int)
    assert 0 < small[0] < 138412032


@pytest.mark.parametrize(
    ("query", "key", "taken"),
    [
        ((4, 16, 512, 64), (4, 16, 512, 64), 8519936),
        ((4, 16, 197, 64), (4, 16, 197, 64), 3278336),
        ((2, 32, 1024, 64), (2, 4, 1024, 64), 33816832),  # grouped queries
        ((1, 8, 2048, 128), (1, 8, 2048, 128), 8454400),
        ((64, 6, 49, 32), (64, 6, 49, 32), 2483968),
    ],
)
def test_cudnn_attention_backward(query: tuple[int, ...], key: tuple[int, ...], taken: int) -> None:
    assert attention_backward_cudnn(query, key, 2) == taken


@pytest.mark.parametrize(
    ("query", "taken"),
    [
        ((4, 16, 512, 64), 8396800),
        ((4, 16, 197, 64), 4198400),
        ((1, 8, 2048, 128), 8392704),
        ((2, 8, 300, 80), 3147264),
        ((64, 6, 49, 32), 6297600),
    ],
)
def test_efficient_attention_backward(query: tuple[int, ...], taken: int) -> None:
    assert attention_backward_efficient(query) == pytest.approx(taken, rel=0.002)


@pytest.mark.parametrize(
    ("indices", "width", "partial"), [(8192, 1024, 36909056), (4096, 768, 13839360), (2048, 768, None)]
)
def test_embedding_backward_keeps_partial_sums(indices: int, width: int, partial: int | None) -> None:
    found = embedding_backward(indices, 30522, width)
    assert (found[-1] if found else None) == partial


@pytest.mark.parametrize(
    ("shape", "reserve", "taken"),
    [
        (Recurrent("LSTM", 256, 64, 1024, 1024, 2, 1, 4), 738197760, 491782912),
        (Recurrent("LSTM", 256, 64, 1024, 1024, 2, 1, 2), 369099008, 254280448),
        (Recurrent("LSTM", 50, 8, 300, 300, 2, 2, 4), 10560256, 55615552),
        (Recurrent("GRU", 200, 32, 768, 768, 3, 1, 4), 393216256, 170557952),
        (Recurrent("GRU", 64, 128, 256, 256, 4, 1, 2), 113246464, 60032256),
        (Recurrent("LSTM", 256, 64, 1024, 1024, 2, 1, 2, drops=True), 371196160, 287834880),
        (Recurrent("LSTM", 200, 32, 768, 768, 3, 1, 4, drops=True), 335462656, 222364160),
        (Recurrent("LSTM", 50, 8, 300, 300, 2, 2, 4, drops=True), 10620288, 55615552),
    ],
)
def test_recurrent_layers_keep_a_reserve(shape: Recurrent, reserve: int, taken: int) -> None:
    assert (shape.reserve_bytes, shape.workspace.nbytes) == (reserve, taken)


def test_dropout_between_the_layers_of_a_gru_has_a_range() -> None:
    shape = Recurrent("GRU", 256, 64, 1024, 1024, 2, 1, 4, drops=True)
    assert shape.reserve_bytes == 874512640
    assert shape.workspace.low < 472384256 < shape.workspace.high
    assert shape.workspace.nbytes == pytest.approx(472384256, rel=0.01)


def test_a_recurrent_layer_that_was_not_measured_gets_a_workspace_near_those_that_were() -> None:
    near = Recurrent("LSTM", 257, 64, 1024, 1024, 2, 1, 4).workspace
    assert near.low < 491782912 < near.high < 1.2 * near.low


def test_a_measured_convolution_has_its_workspace_exactly() -> None:
    shape = Convolution(8, 64, 128, 128, 128, 3, 3, 1, 1, 1, 1, 0)
    found = workspace(shape, "forward", itemsize=4, channels_last=False)
    assert found == (33849360, 33849360, 33849360)


def test_the_range_of_an_estimate_holds_most_shapes_that_are_left_out() -> None:
    table = _table()
    inside = missed = 0
    for column in (0, 4, 8):
        for shape, row in list(table.items())[::5]:
            span = estimate(shape, column, {other: line[column] for other, line in table.items() if other != shape})
            inside, missed = (inside + 1, missed) if span.low <= row[column] <= span.high else (inside, missed + 1)
    assert inside / (inside + missed) > 0.95


def test_a_kind_of_convolution_with_few_measured_shapes_has_a_wider_range() -> None:
    shape = Convolution(128, 48, 56, 56, 48, 3, 3, 1, 1, 1, 2, 0)
    grouped = [other for other in _table() if other.kind == shape.kind and other != shape]
    known = {other: row[0] for other, row in _table().items() if other not in grouped[4:] and other != shape}
    spans = [estimate(shape, 0, {other: row[0] for other, row in _table().items() if other != shape})]
    spans.append(estimate(shape, 0, known))
    assert len(grouped) > 4
    assert spans[1].high - spans[1].low > 3 * (spans[0].high - spans[0].low)


def test_a_workspace_of_copies_is_as_large_as_the_copies_of_another_shape() -> None:
    """Here the input and the weights of a measured shape, in another layout."""
    shape = Convolution(2, 128, 28, 28, 128, 3, 3, 1, 1, 1, 1, 0)
    measured = Convolution(1, 128, 28, 28, 128, 3, 3, 1, 1, 1, 1, 0)
    taken, _, weights = shape.elements
    assert estimate(shape, 0, {measured: _table()[measured][0]}).nbytes == 4 * (taken + weights)


def test_the_table_of_convolutions_is_part_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert "predict/*.json" in project["tool"]["setuptools"]["package-data"]["torchgauge"]
