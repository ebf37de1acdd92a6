"""Copies that torch makes on the CPU while an op with arguments of several types runs.

Kernels of the CPU work on one type. Where an argument has another one, torch first converts the whole argument: a
product of int8 weights and bfloat16 scales needs a copy of the weights. Kernels of CUDA convert element by element.
"""

from __future__ import annotations

from torchgauge.cost.registry import Call
from torchgauge.facts import TensorSpec
from torchgauge.facts.tensor import item_bytes

_REDUCTIONS = frozenset(
    ("sum", "nansum", "mean", "prod", "cumsum", "cumprod", "linalg_vector_norm", "norm", "logsumexp")
)
# Arguments that keep their type, and ops whose results have another type without a conversion.
_SELECTORS = frozenset(("condition", "mask", "out"))
_TYPE_CHANGING = frozenset(("complex", "polar", "view_as_complex", "copy", "native_dropout", "masked_fill", "fill"))


def conversion_bytes(call: Call) -> int:
    """Bytes of the copies of arguments, and of the result of an op in place, in the type that the CPU works in."""
    name = call.op.removeprefix("aten::").removesuffix("_")
    if not call.outputs or not call.op.startswith("aten::"):
        return 0
    if name in _REDUCTIONS:
        given, out = call.first, call.out
        is_converted = given.dtype != out.dtype and not given.is_complex and not given.is_sparse
        return given.numel * out.itemsize if is_converted else 0
    if "pointwise" not in call.tags or name in _TYPE_CHANGING:
        return 0
    operands = [
        value
        for argument, value in call.arguments.items()
        if isinstance(value, TensorSpec) and argument not in _SELECTORS and not value.is_sparse
    ]
    common = _common_type(call, operands)
    converted = sum(spec.numel for spec in operands if spec.shape and spec.dtype != common)
    if call.op.endswith("_") and call.out.dtype not in (common, "bool"):
        converted += call.out.numel
    return converted * item_bytes(common)


def _common_type(call: Call, operands: list[TensorSpec]) -> str:
    """The type that torch promotes the operands to. That of the result shows which number decided: int8 times 2.0 is
    float32."""
    types = [spec.dtype for spec in operands if spec.shape] or [spec.dtype for spec in operands]
    if call.out.dtype != "bool" and not call.op.endswith("_"):
        types.append(call.out.dtype)
    elif not any(map(_is_arithmetic, types)) and any(isinstance(value, float) for value in call.arguments.values()):
        types.append("float32")
    highest = max(map(_rank, types), default=(0, 0))
    found = {dtype for dtype in types if _rank(dtype) == highest}
    # float16 and bfloat16 hold each other's values only in float32, uint8 and int8 only in int16.
    if len(found) > 1:
        return "float32" if highest[0] == _rank("float32")[0] else "int16"
    return found.pop() if found else call.out.dtype


def _rank(dtype: str) -> tuple[int, int]:
    kinds = (("bool",), ("uint", "int"), ("float", "bfloat"), ("complex",))
    kind = next((place for place, prefix in enumerate(kinds) if dtype.startswith(prefix)), 0)
    return kind, item_bytes(dtype)


def _is_arithmetic(dtype: str) -> bool:
    return _rank(dtype) >= (2, 0)
