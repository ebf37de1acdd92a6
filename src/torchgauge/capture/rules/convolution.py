from __future__ import annotations

from torchgauge.capture.fake_tensor import Spec, Specs
from torchgauge.capture.rules.layout import channels_last_stride, is_channels_last
from torchgauge.capture.rules.registry import Arguments, shape_rule
from torchgauge.facts.strides import contiguous_stride


# Traces have the second one, whose own kernel asks CUDA for its devices where torch is built with it: a reader of files
# may not.
@shape_rule("aten::convolution", "aten::_convolution")
def convolution(arguments: Arguments, specs: Specs) -> Spec | None:
    image, weight, bias = arguments["input"].spec, arguments["weight"].spec, arguments["bias"]
    groups = arguments["groups"]
    rank = len(weight.shape) - 2
    if len(image.shape) != rank + 2 or image.dtype is not weight.dtype or 0 in image.shape:
        return None
    transposed = arguments["transposed"]
    channels_in = weight.shape[0] if transposed else weight.shape[1] * groups
    channels_out = weight.shape[1] * groups if transposed else weight.shape[0]
    if image.shape[1] != channels_in or channels_out % groups:
        return None
    if bias is not None and (bias.spec.shape != (channels_out,) or bias.spec.dtype is not image.dtype):
        return None
    space = _space(arguments, image.shape[2:], weight.shape[2:], transposed=transposed)
    if any(size <= 0 for size in space):
        return None
    shape = (image.shape[0], channels_out, *space)
    last = is_channels_last(image) or is_channels_last(weight)
    return specs.get(
        shape, channels_last_stride(shape) if last else contiguous_stride(shape), image.dtype, image.device
    )


def _space(
    arguments: Arguments, sizes: tuple[int, ...], kernel: tuple[int, ...], *, transposed: bool
) -> tuple[int, ...]:
    stride, padding, dilation, extra = (
        _per_dim(arguments[name], len(sizes)) for name in ("stride", "padding", "dilation", "output_padding")
    )
    if transposed:
        return tuple(
            (n - 1) * s - 2 * p + d * (k - 1) + e + 1
            for n, k, s, p, d, e in zip(sizes, kernel, stride, padding, dilation, extra, strict=True)
        )
    return tuple(
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(sizes, kernel, stride, padding, dilation, strict=True)
    )


def _per_dim(values: list[int], rank: int) -> list[int]:
    return values * rank if len(values) == 1 else values
