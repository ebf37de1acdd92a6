from __future__ import annotations

from typing import Any

import pytest

from tests.cost.calls import cost, judge, spec
from torchgauge.facts import Cost, TensorSpec


def convolve(x: TensorSpec, weight: TensorSpec, out: TensorSpec, **arguments: Any) -> Cost:
    return cost("aten::convolution", out, input=x, weight=weight, **{"transposed": False, **arguments})


def test_a_convolution_is_outputs_by_channels_by_kernel() -> None:
    done = convolve(spec(2, 3, 8, 8), spec(16, 3, 3, 3), spec(2, 16, 8, 8), bias=spec(16))
    macs = 2 * 16 * 64 * 3 * 9
    assert done == Cost(macs, 2 * macs + 2 * 16 * 64, 4 * (384 + 432 + 16), 4 * 2048)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_every_rank(rank: int) -> None:
    side, kernel = (6,) * rank, (3,) * rank
    assert convolve(spec(1, 4, *side), spec(8, 4, *kernel), spec(1, 8, *side)).macs == 8 * 6**rank * 4 * 3**rank


def test_groups_divide_the_input_channels() -> None:
    depthwise = convolve(spec(1, 32, 10, 10), spec(32, 1, 3, 3), spec(1, 32, 10, 10), groups=32)
    assert depthwise.macs == 32 * 100 * 9


def test_a_transposed_convolution_is_seen_from_its_input() -> None:
    done = convolve(spec(1, 8, 5, 5), spec(8, 2, 4, 4), spec(1, 4, 10, 10), transposed=True, groups=2)
    assert done.macs == 8 * 25 * 2 * 16


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("aten::conv2d", {"input": spec(1, 3, 8, 8)}),
        ("aten::mkldnn_convolution", {"self": spec(1, 3, 8, 8)}),
        ("aten::cudnn_convolution", {"self": spec(1, 3, 8, 8)}),
        ("aten::_slow_conv2d_forward", {"self": spec(1, 3, 8, 8)}),
    ],
)
def test_every_kernel_has_the_same_macs(op: str, arguments: dict[str, TensorSpec]) -> None:
    assert cost(op, spec(1, 4, 6, 6), weight=spec(4, 3, 3, 3), **arguments).macs == 4 * 36 * 27


def test_a_fused_activation_and_sum_are_flops() -> None:
    arguments = {"self": spec(1, 3, 8, 8), "weight": spec(4, 3, 3, 3), "bias": spec(4)}
    relu = cost("aten::cudnn_convolution_relu", spec(1, 4, 6, 6), **arguments)
    add_relu = cost("aten::cudnn_convolution_add_relu", spec(1, 4, 6, 6), z=spec(1, 4, 6, 6), **arguments)
    assert relu.flops == 2 * 3888 + 2 * 144
    assert add_relu.flops == 2 * 3888 + 3 * 144


@pytest.mark.parametrize(
    ("mask", "passes", "bias"),
    [
        ([True, True, True], 2, 1),
        ([False, True, True], 1, 1),
        ([True, False, False], 1, 0),
        ([False, False, True], 0, 1),
    ],
)
def test_backward_costs_one_forward_per_gradient(mask: list[bool], passes: int, bias: int) -> None:
    grad, macs = spec(2, 16, 8, 8), 2 * 16 * 64 * 27
    done = cost(
        "aten::convolution_backward",
        spec(2, 3, 8, 8),
        grad_output=grad,
        input=spec(2, 3, 8, 8),
        weight=spec(16, 3, 3, 3),
        transposed=False,
        output_mask=mask,
    )
    assert (done.macs, done.flops) == (passes * macs, 2 * passes * macs + bias * grad.numel)


def test_conv_tbc_has_its_channels_last() -> None:
    done = cost("aten::conv_tbc", spec(8, 2, 6), self=spec(10, 2, 4), weight=spec(3, 4, 6), bias=spec(6))
    assert done.macs == 8 * 2 * 6 * 3 * 4


def test_deformable_convolution_adds_the_sampling() -> None:
    found = judge(
        "torchvision::deform_conv2d",
        spec(1, 8, 5, 5),
        input=spec(1, 4, 5, 5),
        weight=spec(8, 4, 3, 3),
        offset=spec(1, 18, 5, 5),
        mask=spec(1, 9, 5, 5),
        bias=spec(8),
        use_mask=True,
    )
    macs, samples = 8 * 25 * 36, 4 * 9 * 25
    assert found.category == "convolution"
    assert (found.cost.macs, found.cost.flops) == (macs, 2 * macs + 10 * samples + 200)


@pytest.mark.parametrize(("kernel", "stride", "touched"), [(1, 2, 16), (2, 3, 36), (3, 2, 64), (1, 1, 64)])
def test_a_strided_convolution_reads_what_its_windows_touch(kernel: int, stride: int, touched: int) -> None:
    side = (8 + 2 * (kernel // 3) - kernel) // stride + 1
    done = convolve(
        spec(2, 3, 8, 8), spec(4, 3, kernel, kernel), spec(2, 4, side, side),
        stride=[stride] * 2, padding=[kernel // 3] * 2, dilation=[1, 1],
    )  # fmt: skip
    assert done.bytes_read == 4 * (2 * 3 * touched + 4 * 3 * kernel**2)


def test_so_does_its_gradient() -> None:
    arguments = {"grad_output": spec(1, 4, 4, 4), "input": spec(1, 3, 8, 8), "weight": spec(4, 3, 1, 1)}
    done = cost("aten::convolution_backward", spec(1, 3, 8, 8), spec(4, 3, 1, 1), stride=[2, 2], **arguments)
    assert done.bytes_read == 4 * (64 + 3 * 16 + 12)
