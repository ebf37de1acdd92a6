"""torchvision's own ops.

A region's size depends on the data: where an op divides it into bins by itself, a bin is taken as 2 × 2 samples, the
usual setting. Bilinear samples cost 9 flops each, as in `resize`.
"""

from __future__ import annotations

from math import prod

from torchgauge.cost.registry import Call, Work, formula
from torchgauge.cost.resize import LINEAR_FLOPS
from torchgauge.cost.work import arithmetic, products
from torchgauge.facts import TensorSpec

_SAMPLES_PER_SIDE = 2
# Intersection over union: 4 extremes, 2 differences, 2 clamps, product, 2 for the union, division, comparison.
_IOU_FLOPS = 13
_AREA_FLOPS = 3
_BILINEAR = LINEAR_FLOPS[2]


@formula("torchvision::nms", category="other")
def nms(call: Call) -> Work:
    """Sorts the scores, then compares every pair of boxes at most."""
    boxes = call["dets"].shape[0]
    pairs = boxes * (boxes - 1) // 2
    return arithmetic(call, boxes * max(boxes - 1, 0).bit_length() + _AREA_FLOPS * boxes + _IOU_FLOPS * pairs)


@formula("torchvision::roi_align", "torchvision::ps_roi_align", category="pooling")
def roi_align(call: Call) -> Work:
    """The mean of bilinear samples."""
    return arithmetic(call, call.out.numel * _samples(call) * (_BILINEAR + 1))


@formula("torchvision::_roi_align_backward", "torchvision::_ps_roi_align_backward", category="pooling")
def roi_align_backward(call: Call) -> Work:
    """A product and a sum for each of four neighbours."""
    return arithmetic(call, call["grad"].numel * _samples(call) * 8)


@formula("torchvision::roi_pool", "torchvision::ps_roi_pool", category="pooling")
def roi_pool(call: Call) -> Work:
    return arithmetic(call, call.out.numel * _SAMPLES_PER_SIDE**2)


@formula("torchvision::_roi_pool_backward", "torchvision::_ps_roi_pool_backward", category="pooling")
def roi_pool_backward(call: Call) -> Work:
    return arithmetic(call, call["grad"].numel)


@formula("torchvision::deform_conv2d", category="convolution")
def deform_conv2d(call: Call) -> Work:
    """A convolution over bilinear samples, each weighted by the mask where there is one; the bias is always added."""
    macs = call.out.numel * prod(call["weight"].shape[1:])
    per_sample = _BILINEAR + bool(call.get("use_mask"))
    return products(call, macs, _deformed_samples(call, call.out) * per_sample + call.out.numel)


@formula("torchvision::_deform_conv2d_backward", category="convolution")
def deform_conv2d_backward(call: Call) -> Work:
    """Input and weight cost one forward each; a sample's gradient goes to 4 neighbours and 2 coordinates (8 each)."""
    grad = call["grad"]
    macs = 2 * grad.numel * prod(call["weight"].shape[1:])
    return products(call, macs, _deformed_samples(call, grad) * 3 * 8 + grad.numel)


def _samples(call: Call) -> int:
    ratio = call.get("sampling_ratio", 0)
    return int(ratio if ratio > 0 else _SAMPLES_PER_SIDE) ** 2


def _deformed_samples(call: Call, output: TensorSpec) -> int:
    """One per input channel, tap of the kernel and output position."""
    given, kernel = call["input"], prod(call["weight"].shape[2:])
    return int(given.shape[0] * given.shape[1] * kernel * prod(output.shape[-2:]))
