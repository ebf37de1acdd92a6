from __future__ import annotations

from math import prod
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.checked import analyze_checked, assert_same_figures
from tests.models.closed_forms import convolution, convolved, transposed

BATCH, INPUTS, OUTPUTS = 2, 6, 12
SIZES = (17, 14, 11)

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}

ranks = pytest.mark.parametrize("rank", [1, 2, 3])
groupings = pytest.mark.parametrize("groups", [1, 2, 6])
geometries = pytest.mark.parametrize(
    "geometry",
    [
        {"kernel": 1},
        {"kernel": 3},
        {"kernel": 3, "padding": 1},
        {"kernel": 3, "stride": 2, "padding": 1},
        {"kernel": 2, "stride": 3},
        {"kernel": 3, "dilation": 2, "padding": 2},
        {"kernel": 4, "stride": 2, "dilation": 3, "padding": 5},
    ],
    ids=lambda geometry: "-".join(f"{name}{value}" for name, value in geometry.items()),
)


def options(geometry: dict[str, int]) -> dict[str, Any]:
    return {"kernel_size" if name == "kernel" else name: value for name, value in geometry.items()}


@ranks
@groupings
@geometries
def test_a_convolution_costs_its_kernel_at_every_output_position(
    rank: int, groups: int, geometry: dict[str, int]
) -> None:
    layer = CONVOLUTIONS[rank](INPUTS, OUTPUTS, groups=groups, **options(geometry))
    shape = [convolved(size, **geometry) for size in SIZES[:rank]]
    analysis = analyze_checked(layer, input_size=(BATCH, INPUTS, *SIZES[:rank]))
    expected = convolution(BATCH * prod(shape), INPUTS, OUTPUTS, [geometry["kernel"]] * rank, groups)
    assert analysis.totals.macs == expected
    assert analysis.modules[0].output_shapes == [[BATCH, OUTPUTS, *shape]]


@ranks
@groupings
@geometries
def test_a_transposed_convolution_costs_its_kernel_at_every_input_position(
    rank: int, groups: int, geometry: dict[str, int]
) -> None:
    layer = TRANSPOSED[rank](INPUTS, OUTPUTS, groups=groups, **options(geometry))
    shape = [transposed(size, **geometry) for size in SIZES[:rank]]
    analysis = analyze_checked(layer, input_size=(BATCH, INPUTS, *SIZES[:rank]))
    expected = convolution(BATCH * prod(SIZES[:rank]), INPUTS, OUTPUTS, [geometry["kernel"]] * rank, groups)
    assert analysis.totals.macs == expected
    assert analysis.modules[0].output_shapes == [[BATCH, OUTPUTS, *shape]]


def test_output_padding_of_a_transposed_convolution_costs_nothing() -> None:
    layer = nn.ConvTranspose2d(INPUTS, OUTPUTS, 3, stride=2, padding=1, output_padding=1)
    analysis = analyze_checked(layer, input_size=(BATCH, INPUTS, 8, 9))
    assert analysis.totals.macs == convolution(BATCH * 8 * 9, INPUTS, OUTPUTS, (3, 3))
    assert analysis.modules[0].output_shapes == [[BATCH, OUTPUTS, 16, 18]]


@pytest.mark.parametrize("bias", [False, True])
def test_a_bias_adds_flops_but_no_macs(bias: bool) -> None:
    analysis = analyze_checked(nn.Conv2d(3, 8, 3, bias=bias), input_size=(1, 3, 10, 10))
    macs = convolution(8 * 8, 3, 8, (3, 3))
    assert analysis.totals.macs == macs
    assert analysis.totals.flops == 2 * macs + (8 * 8 * 8 if bias else 0)


def test_kernels_strides_and_dilations_may_differ_by_dimension() -> None:
    layer = nn.Conv2d(4, 8, (3, 5), stride=(2, 1), padding=(0, 2), dilation=(1, 2))
    analysis = analyze_checked(layer, input_size=(1, 4, 20, 30))
    rows, columns = convolved(20, 3, 2), convolved(30, 5, 1, 2, 2)
    assert analysis.totals.macs == convolution(rows * columns, 4, 8, (3, 5))


@pytest.mark.parametrize("padding_mode", ["zeros", "reflect", "replicate", "circular"])
def test_same_padding_keeps_the_size_in_every_padding_mode(padding_mode: Any) -> None:
    layer = nn.Conv2d(4, 8, 5, padding="same", padding_mode=padding_mode)
    analysis = analyze_checked(layer, input_size=(1, 4, 12, 13))
    assert analysis.totals.macs == convolution(12 * 13, 4, 8, (5, 5))


def test_an_image_without_a_batch_dimension_counts_as_one() -> None:
    analysis = analyze_checked(nn.Conv2d(3, 8, 3), inputs=torch.zeros(3, 10, 10))
    assert analysis.totals.macs == convolution(8 * 8, 3, 8, (3, 3))


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_the_type_of_the_numbers_changes_bytes_but_not_macs(dtype: str) -> None:
    layer = nn.Conv2d(3, 8, 3)
    single, other = (analyze_checked(layer, input_size=(1, 3, 10, 10), dtype=name) for name in ("float32", dtype))
    assert other.totals.macs == single.totals.macs
    ratio = torch.finfo(getattr(torch, dtype)).bits / 32
    assert other.totals.bytes_read == single.totals.bytes_read * ratio


class Unfolded(nn.Module):
    """A convolution written as im2col and one matrix product."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8, 3 * 9))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight @ F.unfold(x, 3, padding=1)


def test_a_convolution_by_unfolding_costs_the_same() -> None:
    unfolded = analyze_checked(Unfolded(), input_size=(2, 3, 10, 10))
    assert unfolded.totals.macs == convolution(2 * 10 * 10, 3, 8, (3, 3))


@ranks
def test_channels_last_memory_costs_the_same(rank: int) -> None:
    layer = CONVOLUTIONS[rank](INPUTS, OUTPUTS, 3)
    plain = analyze_checked(layer, inputs=torch.zeros(BATCH, INPUTS, *SIZES[:rank]))
    strided = analyze_checked(layer, inputs=torch.zeros(BATCH, *SIZES[:rank], INPUTS).movedim(-1, 1))
    assert strided.totals.macs == plain.totals.macs
    assert strided.totals.flops == plain.totals.flops


@ranks
@pytest.mark.parametrize("kinds", [CONVOLUTIONS, TRANSPOSED], ids=["plain", "transposed"])
def test_real_and_meta_parameters_give_the_same_figures(rank: int, kinds: dict[int, Any]) -> None:
    layer = kinds[rank](INPUTS, OUTPUTS, 3, stride=2, groups=2)
    real = analyze_checked(layer, input_size=(BATCH, INPUTS, *SIZES[:rank]))
    assert_same_figures(real, analyze_checked(layer.to("meta"), input_size=(BATCH, INPUTS, *SIZES[:rank])))
