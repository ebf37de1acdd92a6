"""What the nodes of an exported graph call."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from torchgauge.errors import FormatError
from torchgauge.source.allowed_ops import require_allowed
from torchgauge.source.exported.program import Graph, assign, resolve

# Checks that the export added: the model itself does not make them.
_CHECK_NAMES = ("_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range",
                "sym_constrain_range_for_size")  # fmt: skip
CHECKS = frozenset(
    getattr(packet, overload)
    for name in _CHECK_NAMES
    if (packet := getattr(torch.ops.aten, name, None)) is not None
    for overload in packet.overloads()
)

# Arithmetic on sizes.
_PYTHON: dict[str, Callable[..., Any]] = {
    f"_operator.{name}": getattr(operator, name)
    for name in ("add", "sub", "mul", "floordiv", "truediv", "mod", "neg", "pos", "pow", "eq", "ne", "lt", "le", "gt",
                 "ge", "and_", "or_", "not_", "getitem")
} | {
    "math.ceil": math.ceil,
    "math.floor": math.floor,
    "math.trunc": math.trunc,
    "torch.sym_int": int,
    "torch.sym_float": float,
    "torch.sym_max": max,
    "torch.sym_min": min,
    "torch.sym_not": operator.not_,
    "torch.sym_ite": lambda condition, yes, no: yes if condition else no,
    "torch._sym_sqrt": math.sqrt,
}  # fmt: skip


def function_named(target: str, where: str) -> Callable[..., Any] | None:
    """The function that a node of an archive calls; None for a check that is left out."""
    if target in _PYTHON:
        return _PYTHON[target]
    match target.split("."):
        case ["torch", "ops", "higher_order", name]:
            return run_higher_order(name)
        case ["torch", "ops", namespace, name, overload]:
            require_allowed(f"{namespace}::{name}", where)
            found = getattr(getattr(getattr(torch.ops, namespace), name), overload, None)
            if found is not None:
                return None if found in CHECKS else found
    raise FormatError(f"{where} calls {target}, which torchgauge does not know, so it is not run")


def run_higher_order(name: str) -> Callable[..., Any]:
    found = _HIGHER_ORDER.get(name)
    if found is None:
        raise FormatError(f"the exported program calls the higher-order op '{name}', which torchgauge does not run")
    return found


def _run(graph: Graph, args: Any) -> tuple[Any, ...]:
    values = dict(zip(graph.inputs, args, strict=True))
    for call in graph.calls:
        assign(call.outputs, call.function(*resolve(call.args, values), **resolve(call.kwargs, values)), values)
    return tuple(resolve(graph.outputs, values))


def _with_grad_mode(enabled: bool, body: Graph, *args: Any) -> tuple[Any, ...]:
    with torch.set_grad_enabled(enabled):
        return _run(body, args)


def _with_autocast(
    device: str, dtype: torch.dtype | None, enabled: bool, cache: bool | None, body: Graph, *args: Any
) -> tuple[Any, ...]:
    with torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=cache):
        return _run(body, args)


def _cond(condition: Any, yes: Graph, no: Graph, operands: Any = ()) -> tuple[Any, ...]:
    return _run(yes if bool(condition) else no, operands)


_HIGHER_ORDER: dict[str, Callable[..., Any]] = {
    "wrap_with_set_grad_enabled": _with_grad_mode,
    "wrap_with_autocast": _with_autocast,
    "cond": _cond,
}
