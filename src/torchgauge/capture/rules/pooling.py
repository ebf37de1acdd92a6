from __future__ import annotations

from typing import Any

import torch

from torchgauge.capture.fake_tensor import Spec, Specs
from torchgauge.capture.rules.layout import channels_last_stride, is_channels_last
from torchgauge.capture.rules.registry import Arguments, shape_rule
from torchgauge.facts.strides import contiguous_stride, is_contiguous


@shape_rule("aten::max_pool2d_with_indices")
def max_pool(arguments: Arguments, specs: Specs) -> Any:
    x = arguments["self"].spec
    space = _space(arguments, x, arguments["dilation"])
    if space is None:
        return None
    shape = (*x.shape[:-2], *space)
    stride = contiguous_stride(shape)
    return specs.get(shape, stride, x.dtype, x.device), specs.get(shape, stride, torch.int64, x.device)


@shape_rule("aten::avg_pool2d")
def avg_pool(arguments: Arguments, specs: Specs) -> Spec | None:
    x = arguments["self"].spec
    space = _space(arguments, x, [1, 1])
    if space is None:
        return None
    shape = (*x.shape[:-2], *space)
    return specs.get(shape, contiguous_stride(shape), x.dtype, x.device)


def _space(arguments: Arguments, x: Spec, dilation: list[int]) -> tuple[int, ...] | None:
    """Output height and width; None for layouts and paddings that torch should judge."""
    if len(x.shape) not in (3, 4) or not is_contiguous(x.shape, x.stride) or 0 in x.shape:
        return None
    kernel = _pair(arguments["kernel_size"])
    stride, padding, dilation = _pair(arguments["stride"] or kernel), _pair(arguments["padding"]), _pair(dilation)
    if any(2 * p > k for p, k in zip(padding, kernel, strict=True)):
        return None
    round_up = bool(arguments["ceil_mode"])
    sizes = tuple(
        _pooled(n, k, s, p, d, round_up=round_up)
        for n, k, s, p, d in zip(x.shape[-2:], kernel, stride, padding, dilation, strict=True)
    )
    return sizes if min(sizes) > 0 else None


def _pooled(n: int, k: int, s: int, p: int, d: int, *, round_up: bool) -> int:
    span = n + 2 * p - d * (k - 1) - 1
    if not round_up:
        return span // s + 1
    size = -(-span // s) + 1
    # A window that would start in the padding after the input is dropped.
    return size - 1 if (size - 1) * s >= n + p else size


def _pair(values: list[int]) -> list[int]:
    return list(values) * 2 if len(values) == 1 else list(values)


_MODES = ("nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d", "trilinear3d", "bicubic2d")


@shape_rule(
    *(f"aten::upsample_{mode}" for mode in _MODES), "aten::_upsample_bilinear2d_aa", "aten::_upsample_bicubic2d_aa"
)
def upsample(arguments: Arguments, specs: Specs) -> Spec | None:
    x, size = arguments.get("self"), arguments.get("output_size")
    if x is None or size is None or len(x.spec.shape) != len(size) + 2 or min(size) <= 0 or 0 in x.spec.shape:
        return None
    shape = (*x.spec.shape[:2], *size)
    last = is_channels_last(x.spec)
    stride = channels_last_stride(shape) if last else contiguous_stride(shape)
    return specs.get(shape, stride, x.spec.dtype, x.spec.device)
