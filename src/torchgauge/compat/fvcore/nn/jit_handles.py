"""Handles: functions of the inputs and outputs of an op that return a count, or counts by name.

Multiply-adds are torchgauge's (`torchgauge.cost`); defined here are fvcore's rates of norms and elementwise ops. A
handle reads the values of `torch.jit` graphs as well as those of this package.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import prod
from typing import Any

import torch

from torchgauge.cost import Call, assess
from torchgauge.facts import TensorSpec

# The inputs or outputs of an op, as values of torch's graphs.
Values = list[Any]
Handle = Callable[[Values, Values], "Counter[str] | int | float"]

NORM_RATE, AFFINE_NORM_RATE = 4, 5  # fvcore's estimate per element


def get_shape(val: Any) -> list[int] | None:
    """The sizes of a tensor value; None for anything else."""
    return val.type().sizes() if val.isCompleteTensor() else None


def multiply_adds(inputs: Values, outputs: Values) -> int:
    """The multiply-adds of the op that gave `outputs`."""
    op = outputs[0].node().kind()
    schema = getattr(torch.ops.aten, op.removeprefix("aten::")).default._schema
    arguments = {argument.name: _plain(value) for argument, value in zip(schema.arguments, inputs, strict=False)}
    return assess(Call(op, arguments, tuple(map(_plain, outputs)))).cost.macs


addmm_flop_jit = bmm_flop_jit = einsum_flop_jit = linear_flop_jit = matmul_flop_jit = multiply_adds


def conv_flop_count(x_shape: list[int], w_shape: list[int], out_shape: list[int], transposed: bool = False) -> int:
    """Multiply-adds of a convolution of these shapes."""
    x, weight, out = (TensorSpec(tuple(shape)) for shape in (x_shape, w_shape, out_shape))
    arguments = {"input": x, "weight": weight, "bias": None, "transposed": transposed}
    return assess(Call("aten::convolution", arguments, (out,))).cost.macs


def conv_flop_jit(inputs: Values, outputs: Values) -> Counter[str]:
    """Multiply-adds of a convolution, under the name "conv"."""
    return Counter({"conv": multiply_adds(inputs, outputs)})


def generic_activation_jit(op_name: str | None = None) -> Handle:
    """Counts the elements of the first output; under `op_name` if one is given."""

    def count(inputs: Values, outputs: Values) -> Counter[str] | int:
        elements = _numel(outputs[0])
        return elements if op_name is None else Counter({op_name: elements})

    return count


def norm_flop_counter(affine_arg_index: int) -> Handle:
    """Counts a norm whose statistics are computed; the weight is the input at `affine_arg_index`."""

    def count(inputs: Values, outputs: Values) -> int:
        affine = get_shape(inputs[affine_arg_index]) is not None
        return _numel(inputs[0]) * (AFFINE_NORM_RATE if affine else NORM_RATE)

    return count


def batchnorm_flop_jit(inputs: Values, outputs: Values) -> Counter[str] | int | float:
    """In evaluation the statistics are constants: a scale, and a shift where there is a weight."""
    if inputs[5].toIValue():
        return norm_flop_counter(1)(inputs, outputs)
    return _numel(inputs[0]) * (1 if get_shape(inputs[1]) is None else 2)


def elementwise_flop_counter(input_scale: float = 1, output_scale: float = 0) -> Handle:
    """Counts `input_scale` per element of the first input and `output_scale` per element of the first output."""

    def count(inputs: Values, outputs: Values) -> float:
        return input_scale * _numel(inputs[0]) + output_scale * _numel(outputs[0])

    return count


def _numel(value: Any) -> int:
    return prod(get_shape(value) or ())


def _plain(value: Any) -> Any:
    """A value as the cost formulas take it."""
    shape = get_shape(value)
    if shape is not None:
        return TensorSpec(tuple(shape))
    node = value.node()
    if node is not None and node.kind() == "prim::ListConstruct":
        return [_plain(item) for item in node.inputs()]
    return value.toIValue()
