"""Interpolation, padding and the rearrangements around them; torchvision's own ops.

Interpolating between two values is 3 flops (a + w (b − a)), so a linear resize costs 3 per output, a bilinear one 9
(three of them), a trilinear one 21. A bicubic output is five sums of four weighted values: 5 × 7. The weights belong to
rows and columns and are not counted. With anti-aliasing the kernel grows with the reduction: one pass along the width,
one along the height. Gradients: a product and a sum per tap.

Sampling at the points of a grid, per point and coordinate: bring it to pixels (3 flops, 4 without aligned corners) and
split it (2: floor, difference); bicubic weights are 4 polynomials of 6 flops. Per output the same interpolation.
"""

from __future__ import annotations

from math import ceil, prod

from torchgauge.cost.registry import Call, Work, formula
from torchgauge.cost.work import argument, arithmetic, per_input, per_output, products, rows
from torchgauge.facts import TensorSpec

LINEAR_FLOPS = {1: 3, 2: 9, 3: 21}
BICUBIC_FLOPS = 35
# Width of the kernel in input pixels, if the size does not change.
_KERNEL_WIDTH = {"bilinear": 2, "bicubic": 4, "lanczos": 6}

_COPYING = [f"{name}{rank}d" for name in ("upsample_nearest", "_upsample_nearest_exact", "reflection_pad",
                                          "replication_pad") for rank in (1, 2, 3)]  # fmt: skip
per_output(
    "resize",
    {
        " ".join(_COPYING): 0,
        "im2col pixel_shuffle pixel_unshuffle constant_pad_nd pad _pad_enum _pad_circular": 0,
        "upsample_linear1d": LINEAR_FLOPS[1],
        "upsample_bilinear2d": LINEAR_FLOPS[2],
        "upsample_trilinear3d": LINEAR_FLOPS[3],
        "upsample_bicubic2d": BICUBIC_FLOPS,
    },
)
per_input(
    "resize",
    {
        # Where windows overlap or a value was repeated, gradients are summed.
        "col2im": 1,
        **{f"{name}_backward": 1 for name in _COPYING},
        "upsample_linear1d_backward": 4,
        "upsample_bilinear2d_backward": 8,
        "upsample_trilinear3d_backward": 16,
        "upsample_bicubic2d_backward": 32,
    },
)


@formula(*(f"aten::_upsample_{kind}2d_aa" for kind in _KERNEL_WIDTH), category="resize")
def antialiased(call: Call) -> Work:
    return arithmetic(call, _separable_flops(call, argument(call, "self", "input"), call.out))


@formula(*(f"aten::_upsample_{kind}2d_aa_backward" for kind in _KERNEL_WIDTH), category="resize")
def antialiased_backward(call: Call) -> Work:
    return arithmetic(call, _separable_flops(call, call.out, call["grad_output"]))


def _separable_flops(call: Call, given: TensorSpec, resized: TensorSpec) -> int:
    """First along the width at the given height, then along the height: 2 taps − 1 flops per element each."""
    width = next(size for kind, size in _KERNEL_WIDTH.items() if kind in call.op)
    (given_h, given_w), (resized_h, resized_w) = given.shape[-2:], resized.shape[-2:]
    along_width = given_h * resized_w * (2 * _taps(width, given_w, resized_w) - 1)
    along_height = resized_h * resized_w * (2 * _taps(width, given_h, resized_h) - 1)
    return prod(given.shape[:-2]) * (along_width + along_height)


def _taps(width: int, given: int, resized: int) -> int:
    return ceil(width * max(given / max(resized, 1), 1.0))


_NEAREST, _BICUBIC = 1, 2


@formula(
    "aten::grid_sampler", "aten::grid_sampler_2d", "aten::grid_sampler_3d", "aten::_grid_sampler_2d_cpu_fallback",
    "aten::cudnn_grid_sampler", category="resize",
)  # fmt: skip
def grid_sample(call: Call) -> Work:
    mode = call.get("interpolation_mode", 0)
    if mode == _NEAREST:
        value_flops = 0
    else:
        value_flops = BICUBIC_FLOPS if mode == _BICUBIC else LINEAR_FLOPS[argument(call, "grid").shape[-1]]
    return arithmetic(call, _point_flops(call) + value_flops * call.out.numel)


@formula(
    "aten::grid_sampler_2d_backward", "aten::grid_sampler_3d_backward",
    "aten::_grid_sampler_2d_cpu_fallback_backward", "aten::cudnn_grid_sampler_backward", category="resize",
)  # fmt: skip
def grid_sample_backward(call: Call) -> Work:
    """The input's gradient takes a product and a sum per tap, the grid's as much per coordinate."""
    grad: TensorSpec = call["grad_output"]
    to_input, to_grid = call.get("output_mask", (True, True))
    coordinates = call["grid"].shape[-1]
    taps = 2**coordinates if call.get("interpolation_mode", 0) != _BICUBIC else 16
    passes = bool(to_input) + coordinates * bool(to_grid)
    return arithmetic(call, _point_flops(call) + 2 * taps * passes * grad.numel)


@formula("aten::affine_grid_generator", "aten::cudnn_affine_grid_generator", category="resize")
def affine_grid(call: Call) -> Work:
    """Every point (x, y, 1) times the transposed matrix of its image: a matrix product."""
    return products(call, call.out.numel * call["theta"].shape[-1])


@formula("aten::affine_grid_generator_backward", "aten::cudnn_affine_grid_generator_backward", category="resize")
def affine_grid_backward(call: Call) -> Work:
    return products(call, call["grad"].numel * call.out.shape[-1])


def _point_flops(call: Call) -> int:
    grid: TensorSpec = call["grid"]
    mode = call.get("interpolation_mode", 0)
    to_pixels = 3 if call.get("align_corners") else 4
    split = {_NEAREST: 1, _BICUBIC: 2 + 4 * 6}.get(mode, 2)
    return rows(grid) * grid.shape[-1] * (to_pixels + split)


# torchvision's own ops. The size of a region depends on the data: if an op chooses the number of samples per bin
# itself, 2 × 2 are assumed, the usual setting. Bilinear samples cost 9 flops each, as in a bilinear resize.

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
    """A convolution over bilinear samples, each weighted by the mask if there is one; the bias is always added."""
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
