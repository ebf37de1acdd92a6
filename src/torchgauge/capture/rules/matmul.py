from __future__ import annotations

from typing import Any

from torchgauge.capture.fake_tensor import Spec, Specs
from torchgauge.capture.rules.registry import Arguments, shape_rule
from torchgauge.facts.strides import contiguous_stride


@shape_rule("aten::mm", "aten::bmm")
def product(arguments: Arguments, specs: Specs) -> Spec | None:
    return _product(arguments["self"].spec, arguments["mat2"].spec, specs)


@shape_rule("aten::addmm", "aten::_addmm_activation")
def addmm(arguments: Arguments, specs: Specs) -> Spec | None:
    bias = arguments["self"].spec
    out = _product(arguments["mat1"].spec, arguments["mat2"].spec, specs)
    return out if out is not None and bias.dtype is out.dtype and _expands(bias.shape, out.shape) else None


@shape_rule("aten::baddbmm")
def baddbmm(arguments: Arguments, specs: Specs) -> Spec | None:
    bias = arguments["self"].spec
    out = _product(arguments["batch1"].spec, arguments["batch2"].spec, specs)
    return out if out is not None and bias.dtype is out.dtype and _expands(bias.shape, out.shape) else None


def _product(left: Spec, right: Spec, specs: Specs) -> Spec | None:
    fits = (
        len(left.shape) == len(right.shape)
        and left.dtype is right.dtype
        and left.shape[-1] == right.shape[-2]
        and left.shape[:-2] == right.shape[:-2]
        and left.device == right.device
    )
    if not fits:
        return None
    shape = (*left.shape[:-1], right.shape[-1])
    return specs.get(shape, contiguous_stride(shape), left.dtype, left.device)


def _expands(small: tuple[int, ...], large: tuple[int, ...]) -> bool:
    pairs: Any = zip(reversed(small), reversed(large), strict=False)
    return len(small) <= len(large) and all(a in (1, b) for a, b in pairs)


@shape_rule("aten::_grouped_mm")
def grouped(arguments: Arguments, specs: Specs) -> Spec | None:
    """Rows in groups against one matrix per group. torch's meta kernel refuses types that its CPU kernel takes."""
    left, right = arguments["self"].spec, arguments["mat2"].spec
    if (
        len(left.shape) != 2
        or len(right.shape) != 3
        or left.shape[1] != right.shape[1]
        or left.dtype is not right.dtype
    ):
        return None
    shape = (left.shape[0], right.shape[2])
    return specs.get(shape, contiguous_stride(shape), arguments["out_dtype"] or left.dtype, left.device)
