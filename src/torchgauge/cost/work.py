"""The vocabulary of formulas: arithmetic (not flops if on integers), products, and tables of flops per element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from torchgauge.cost.registry import Call, Work, formula, read_bytes
from torchgauge.facts import TensorSpec, tensor_specs
from torchgauge.facts.tensor import windowed_elements

# Flops count operations on real numbers. This is how many a complex operation takes; operations that are not listed
# take two, one for each part.
_COMPLEX_FLOPS: Mapping[str, float] = {
    "mul": 6,  # (ac − bd) + (ad + bc)i
    "square": 6,
    "pow": 6,
    "prod": 6,
    "cumprod": 6,
    "div": 11,  # a product with the conjugate, c² + d², two quotients
    "true_divide": 11,
    "reciprocal": 6,  # c² + d², two quotients, a sign
    "abs": 4,  # √(a² + b²)
    "sgn": 6,
    "angle": 1,
    "exp": 5,  # eᵃ, cos b, sin b, two products
    "log": 6,
    "addcmul": 4,  # a product and a sum: 8 in place of 2
    "addcdiv": 6.5,
    "lerp": 10 / 3,  # two sums and a product: 10 in place of 3
}
# A factorisation or solver is products and sums in equal number: 8 in place of 2.
COMPLEX_SOLVER = 4.0


def arithmetic(call: Call, flops: int, complex_rate: float | None = None) -> Work:
    """This many flops, 0 if the op works on integers. On complex numbers, each counts `complex_rate` times."""
    if not call.is_arithmetic:
        return Work(flops=0)
    if not call.is_complex:
        return Work(flops=flops)
    if not complex_rate:
        name = call.op.rpartition("::")[2].removeprefix("_foreach_").strip("_")
        operands = [value for key, value in call.arguments.items() if key in ("self", "other", "scalar", "scalars")]
        is_by_real = len(operands) > 1 and any(not _has_complex(operand) for operand in operands)
        by_real = name in ("mul", "div", "true_divide") and is_by_real
        complex_rate = 2 if by_real else _COMPLEX_FLOPS.get(name, 2)
    return Work(flops=round(flops * complex_rate))


def products(call: Call, macs: int, extra: int = 0) -> Work:
    """Multiply-accumulates and `extra` flops around them (a bias). Products of integers are MACs but not flops. A
    complex multiply-accumulate is four real ones, a complex sum two flops."""
    if call.is_complex:
        macs, extra = 4 * macs, 2 * extra
    return Work(macs, flops=2 * macs + extra if call.is_arithmetic else 0)


def _has_complex(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_has_complex, value))
    return value.is_complex if isinstance(value, TensorSpec) else isinstance(value, complex)


def qualified(*names: str) -> list[str]:
    """Full names of ops: those without a namespace are torch's own, "aten"."""
    return [name if "::" in name else f"aten::{name}" for name in names]


def per_output(category: str, rates: Mapping[str, int]) -> None:
    """Register ops that cost a fixed number of flops per element of their first output. A key has the names of all ops
    with that rate."""
    for names, rate in rates.items():

        @formula(*qualified(*names.split()), category=category)
        def output_rate(call: Call, rate: int = rate) -> Work:
            return arithmetic(call, rate * call.out.stored_numel)


def per_input(category: str, rates: Mapping[str, int]) -> None:
    """The same, per element of their first input."""
    for names, rate in rates.items():

        @formula(*qualified(*names.split()), category=category)
        def input_rate(call: Call, rate: int = rate) -> Work:
            return arithmetic(call, rate * call.first.stored_numel)


def argument(call: Call, *names: str) -> Any:
    """The first of these arguments that the op has and that is not None; otherwise None."""
    return next((value for value in map(call.get, names) if value is not None), None)


def extent(spec: TensorSpec, dim: int) -> int:
    """The size along `dim`; a scalar has one element along any."""
    return spec.shape[dim] if spec.shape else 1


def rows(spec: TensorSpec) -> int:
    """The number of vectors along the last dimension."""
    return spec.numel // spec.shape[-1] if spec.numel else 0


def total_numel(value: Any) -> int:
    """Elements of all tensors in a nested value."""
    return sum(spec.numel for spec in tensor_specs(value))


def total_bytes(value: Any) -> int:
    """Bytes of all tensors in a nested value, an expanded dimension counted once."""
    return sum(spec.distinct_bytes for spec in tensor_specs(value))


def windows_read(call: Call, given: TensorSpec, out: TensorSpec, kernel: Sequence[int]) -> int:
    """Bytes read by an op that slides windows over the last dimensions of `given`. Elements that no window touches are
    not read: a 1×1 kernel with a stride of 2 skips three of four."""
    rank = len(kernel)
    dilations, steps = each(call.get("dilation") or 1, rank), each(call.get("stride") or kernel, rank)
    paddings = call.get("padding") or 0
    if isinstance(paddings, str):  # "same" pads both sides by half of what the kernel spans, "valid" not at all
        paddings = [d * (k - 1) // 2 if paddings == "same" else 0 for d, k in zip(dilations, kernel, strict=True)]
    sizes = zip(given.shape[-rank:], out.shape[-rank:], kernel, steps, dilations, each(paddings, rank), strict=True)
    touched = prod(given.shape[:-rank]) * prod(windowed_elements(*size) for size in sizes)
    return read_bytes(call) - max(given.distinct_numel - touched, 0) * given.itemsize


def each(value: int | Sequence[int], rank: int) -> list[int]:
    """One number for each of `rank` dimensions; a single one applies to all."""
    values = [value] if isinstance(value, int) else list(value)
    return values if len(values) == rank else values * rank


def is_in_place(call: Call) -> bool:
    return call.op.endswith("_")
