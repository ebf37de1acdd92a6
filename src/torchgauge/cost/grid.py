"""Sampling at the points of a grid.

Per point and coordinate: bring it to pixels (3 flops, 4 without aligned corners) and split it (2: floor, difference);
bicubic weights are 4 polynomials of 6 flops. Per output the interpolation of `resize`.
"""

from __future__ import annotations

from torchgauge.cost.registry import Call, Work, formula
from torchgauge.cost.resize import BICUBIC_FLOPS, LINEAR_FLOPS
from torchgauge.cost.work import argument, arithmetic, products, rows
from torchgauge.facts import TensorSpec

_NEAREST, _BICUBIC = 1, 2


@formula(
    "aten::grid_sampler", "aten::grid_sampler_2d", "aten::grid_sampler_3d", "aten::_grid_sampler_2d_cpu_fallback",
    "aten::cudnn_grid_sampler", category="resize",
)  # fmt: skip
def grid_sample(call: Call) -> Work:
    return arithmetic(call, _point_flops(call) + _value_flops(call) * call.out.numel)


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


def _value_flops(call: Call) -> int:
    mode = call.get("interpolation_mode", 0)
    if mode == _NEAREST:
        return 0
    return BICUBIC_FLOPS if mode == _BICUBIC else LINEAR_FLOPS[argument(call, "grid").shape[-1]]
