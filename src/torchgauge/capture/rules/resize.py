from __future__ import annotations

from torchgauge.capture.fake_tensor import Spec, Specs
from torchgauge.capture.rules.layout import channels_last_stride, is_channels_last
from torchgauge.capture.rules.registry import Arguments, shape_rule
from torchgauge.facts.strides import contiguous_stride

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
