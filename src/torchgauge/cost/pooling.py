"""Pooling: one flop per element of a window, a comparison for the maximum, k − 1 sums and a division for the mean.

Windows count in full at the border. Adaptive windows are computed exactly: output i of n covers ⌊i·size/n⌋ to
⌈(i+1)·size/n⌉. Gradients: one addition per output for the maximum; for the mean a division, and an addition per window
element.
"""

from __future__ import annotations

from math import prod

from torchgauge.cost.registry import Call, Work, formula
from torchgauge.cost.work import argument, arithmetic, each, per_input, windows_read
from torchgauge.facts import TensorSpec

_RANKS = ("1d", "2d", "3d")
_WINDOWED = (
    *(f"aten::{kind}_pool{rank}" for kind in ("max", "avg") for rank in _RANKS),
    *(f"aten::max_pool{rank}_with_indices" for rank in _RANKS),
    *(f"aten::quantized_max_pool{rank}" for rank in _RANKS),
    "aten::mkldnn_max_pool2d", "aten::mkldnn_max_pool3d", "aten::fractional_max_pool2d", "aten::fractional_max_pool3d",
    "quantized::max_pool1d", "quantized::max_pool2d",
)  # fmt: skip
_ADAPTIVE = (
    *(f"aten::adaptive_{kind}_pool{rank}" for kind in ("max", "avg") for rank in _RANKS),
    "aten::_adaptive_avg_pool2d", "aten::_adaptive_avg_pool3d", "aten::mkldnn_adaptive_avg_pool2d",
)  # fmt: skip


@formula(*_WINDOWED, category="pooling")
def pool(call: Call) -> Work:
    rank = int(call.op.partition("pool")[2][0])
    kernel = each(call["kernel_size"], rank)
    work = arithmetic(call, call.out.numel * prod(kernel))
    if "stride" not in call.arguments:
        return work  # fractional pooling draws its windows
    return work._replace(bytes_read=windows_read(call, call.first, call.out, kernel))


@formula(*_ADAPTIVE, category="pooling")
def adaptive_pool(call: Call) -> Work:
    rank = int(call.op.partition("pool")[2][0])
    return arithmetic(call, _adaptive_flops(call["self"], call.out, rank))


@formula("aten::avg_pool2d_backward", "aten::avg_pool3d_backward", category="pooling")
def avg_pool_backward(call: Call) -> Work:
    rank = int(call.op.partition("pool")[2][0])
    return arithmetic(call, call["grad_output"].numel * (1 + prod(each(call["kernel_size"], rank))))


@formula(
    "aten::_adaptive_avg_pool2d_backward", "aten::_adaptive_avg_pool3d_backward", "aten::adaptive_avg_pool3d_backward",
    "aten::mkldnn_adaptive_avg_pool2d_backward", category="pooling",
)  # fmt: skip
def adaptive_avg_pool_backward(call: Call) -> Work:
    rank = int(call.op.partition("pool")[2][0])
    grad = call["grad_output"]
    return arithmetic(call, grad.numel + _adaptive_flops(argument(call, "self", "input"), grad, rank))


per_input(
    "pooling",
    {
        "max_pool2d_backward max_pool2d_with_indices_backward max_pool3d_with_indices_backward "
        "mkldnn_max_pool2d_backward mkldnn_max_pool3d_backward adaptive_max_pool2d_backward "
        "adaptive_max_pool3d_backward fractional_max_pool2d_backward fractional_max_pool3d_backward": 1,
        "max_unpool2d max_unpool3d": 0,
    },
)


def _adaptive_flops(wide: TensorSpec, narrow: TensorSpec, rank: int) -> int:
    flops = prod(wide.shape[:-rank])
    for size, windows in zip(wide.shape[-rank:], narrow.shape[-rank:], strict=True):
        # The summed lengths of the windows along one dimension.
        flops *= sum(-(-(i + 1) * size // windows) - i * size // windows for i in range(windows))
    return flops
