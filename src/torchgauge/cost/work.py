"""The words formulas are written in: flops that vanish for integers, products, and tables of flops per element."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchgauge.cost.registry import Call, Work, formula
from torchgauge.records import TensorSpec, tensor_specs


def arithmetic(call: Call, flops: int) -> Work:
    """That many flops; none where the op works on integers."""
    return Work(flops=flops if call.is_arithmetic else 0)


def products(call: Call, macs: int, extra: int = 0) -> Work:
    """Multiply-accumulates and `extra` flops around them (a bias). Products of integers are MACs but no flops."""
    return Work(macs, flops=2 * macs + extra if call.is_arithmetic else 0)


def per_output(category: str, rates: Mapping[str, int]) -> None:
    """Register aten ops that cost a fixed number of flops per element of their first output."""
    for name, rate in rates.items():
        _register_output_rate(category, name, rate)


def per_input(category: str, rates: Mapping[str, int]) -> None:
    """Register aten ops that cost a fixed number of flops per element of their first input."""
    for name, rate in rates.items():
        _register_input_rate(category, name, rate)


def argument(call: Call, *names: str) -> Any:
    """The first of the arguments that this op has and that is not None, else None."""
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


def is_in_place(call: Call) -> bool:
    return call.op.endswith("_")


def _register_output_rate(category: str, name: str, rate: int) -> None:
    @formula(f"aten::{name}", category=category)
    def output_rate(call: Call) -> Work:
        return arithmetic(call, rate * call.out.numel)


def _register_input_rate(category: str, name: str, rate: int) -> None:
    @formula(f"aten::{name}", category=category)
    def input_rate(call: Call) -> Work:
        return arithmetic(call, rate * call.first.numel)
