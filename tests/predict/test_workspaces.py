"""Memory of kernels against what an H200 allocated (torch 2.11, cuDNN 9.19; tools/kernels/memory_device.py)."""

from __future__ import annotations

import heapq
import json
import math
import tomllib
from pathlib import Path

import pytest
import torch

from torchgauge.predict import (
    PASSES,
    Chip,
    Convolution,
    Recurrent,
    attention_backward_cudnn,
    attention_backward_efficient,
    embedding_backward,
    estimate,
    measured_workspaces,
    most_bytes,
    nearest_convolutions,
    reduction,
    workspace,
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


def test_recurrent_layers_take_what_was_measured_on_an_h200() -> None:
    measured = json.loads((Path(__file__).parent / "recurrent_layers.json").read_text())["rows"]
    errors, inside = [], 0
    for kind, dtype, steps, batch, features, units, layers, directions, drops, train, taken, reserve in measured:
        sizes = (steps, batch, features, units, layers, directions)
        shape = Recurrent(kind, *sizes, getattr(torch, dtype), bool(train), bool(drops and train))
        assert not train or shape.reserve_bytes == pytest.approx(reserve, rel=0.01)
        errors.append(abs(shape.workspace.nbytes / taken - 1))
        inside += shape.workspace.low <= taken <= shape.workspace.high
    assert sum(error == 0 for error in errors) > 0.85 * len(errors)
    assert inside > 0.97 * len(errors)


def test_a_measured_convolution_has_its_workspace_exactly() -> None:
    shape = Convolution.of_row([8, 64, 128, 128, 128, 3, 3, 1, 1, 1, 1, 0])
    found = workspace(shape, "forward", itemsize=4, channels_last=False)
    assert found == (33849360, 33849360, 33849360)


def test_the_range_of_an_estimate_holds_most_shapes_that_are_left_out() -> None:
    measured = list(measured_workspaces().items())[::17]
    spans = [(estimate(shape, column), row[column]) for shape, row in measured for column in range(len(row))]
    assert sum(span.low <= taken <= span.high for span, taken in spans) > 0.95 * len(spans)


@pytest.mark.parametrize("is_measured", [True, False])
def test_the_nearest_convolutions_are_those_of_a_plain_search(is_measured: bool) -> None:
    for measured in [*measured_workspaces()][::499]:
        shape = measured if is_measured else measured._replace(batch=7 * measured.batch)
        alike = [other for other in measured_workspaces() if other.kind == shape.kind and other != shape]
        among = alike or [other for other in measured_workspaces() if other != shape]
        plain = heapq.nsmallest(4, among, key=lambda other: math.dist(other.place, shape.place))
        # Places that are equally far may come in another order where all kinds are searched.
        found = nearest_convolutions(shape)[0]
        far = [[math.dist(other.place, shape.place) for other in some] for some in (found, plain)]
        assert (found == plain) if alike else (far[0] == far[1])


def test_a_kind_of_convolution_with_few_measured_shapes_has_a_wider_range() -> None:
    common, rare = (
        Convolution.of_row([128, 48, 56, 56, 64, 3, 3, 1, 1, 1, 1, 0]),
        Convolution.of_row([128, 48, 56, 56, 64, 1, 1, 1, 0, 1, 8, 0]),
    )
    widths = [(span.high - span.low) / sum(shape.elements) for shape in (common, rare) for span in [estimate(shape, 0)]]
    assert widths[1] > 4 * widths[0]


def test_measured_workspaces_are_within_what_the_algorithms_need() -> None:
    within = [
        taken <= most_bytes(shape, PASSES[column % 3], 4 if column // 3 in (0, 3) else 2)
        for shape, row in measured_workspaces().items()
        for column, taken in enumerate(row)
    ]
    assert sum(within) > 0.998 * len(within)


@pytest.mark.parametrize("dilation", [1, 16, 512])
@pytest.mark.parametrize("which", PASSES)
def test_a_padded_signal_has_no_rows_above_and_below(dilation: int, which: str) -> None:
    """The padding of a signal is along its length: a dilation of 512 does not make an image of a thousand rows."""
    shape = Convolution(8, 128, 256, 1, False, (1, 16000), (1, 3), (1, 1), (0, dilation), (1, dilation))
    assert shape.elements == (8 * 128 * 16000, 8 * 256 * 16000, 128 * 256 * 3)
    found = workspace(shape, which, itemsize=4, channels_last=False)
    assert found.nbytes <= found.high <= most_bytes(shape, which, 4) < 16 * 4 * sum(shape.elements)


def test_sizes_of_volumes_are_those_of_torch() -> None:
    layer = torch.nn.Conv3d(4, 6, (3, 5, 7), (1, 2, 2), (1, 2, 0), (2, 1, 1), device="meta")
    shape = Convolution(2, 4, 6, 1, False, (9, 20, 30), (3, 5, 7), (1, 2, 2), (1, 2, 0), (2, 1, 1))
    made = layer(torch.empty(2, 4, 9, 20, 30, device="meta"))
    assert shape.elements == (2 * 4 * 9 * 20 * 30, made.numel(), layer.weight.numel())
    turned = torch.nn.ConvTranspose3d(4, 6, 4, 2, 1, device="meta")
    shape = Convolution(2, 4, 6, 1, True, (5, 6, 7), (4,) * 3, (2,) * 3, (1,) * 3, (1,) * 3)
    assert shape.elements[1] == turned(torch.empty(2, 4, 5, 6, 7, device="meta")).numel()


def test_a_workspace_of_copies_is_as_large_as_the_copies_of_another_shape() -> None:
    """Here the input and the weights of a measured shape, in another layout."""
    shape = Convolution.of_row([2, 128, 28, 28, 128, 3, 3, 1, 1, 1, 1, 0])
    measured = Convolution.of_row([1, 128, 28, 28, 128, 3, 3, 1, 1, 1, 1, 0])
    taken, _, weights = shape.elements
    assert shape not in measured_workspaces()
    assert measured in measured_workspaces()
    assert estimate(shape, 0).nbytes == 4 * (taken + weights)


def test_the_table_of_convolutions_is_part_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert "predict/*.json" in project["tool"]["setuptools"]["package-data"]["torchgauge"]
