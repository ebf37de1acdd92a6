"""What the nodes of an exported graph call."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch._higher_order_ops.cond import cond_op
from torch._higher_order_ops.while_loop import while_loop_op

from torchgauge.errors import FormatError
from torchgauge.source.allowed_ops import require_allowed

# Checks that the export added: the model itself does not make them.
_CHECK_NAMES = ("_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range",
                "sym_constrain_range_for_size")  # fmt: skip
CHECKS = frozenset(
    getattr(packet, overload)
    for name in _CHECK_NAMES
    if (packet := getattr(torch.ops.aten, name, None)) is not None
    for overload in packet.overloads()
)

_LARGEST = 1 << 63  # sizes have 64 bits; Python's integers have no end, and a file could ask for a very long one


def _multiply(left: Any, right: Any) -> Any:
    product = left * right
    if abs(product) > _LARGEST:
        raise OverflowError("a size of the exported program does not fit into 64 bits")
    return product


def _power(base: Any, exponent: Any) -> Any:
    if abs(base) > 1 and abs(exponent) > 64:
        raise OverflowError("a size of the exported program does not fit into 64 bits")
    return base**exponent


# Arithmetic on sizes.
_PYTHON: dict[str, Callable[..., Any]] = {
    f"_operator.{name}": getattr(operator, name)
    for name in ("add", "sub", "floordiv", "truediv", "mod", "neg", "pos", "eq", "ne", "lt", "le", "gt",
                 "ge", "and_", "or_", "not_", "getitem")
} | {
    "_operator.mul": _multiply,
    "_operator.pow": _power,
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


# What a graph is to a higher-order op: a function of its inputs that gives a tuple.
Body = Callable[..., tuple[Any, ...]]


def _with_grad_mode(enabled: bool, body: Body, *args: Any) -> tuple[Any, ...]:
    with torch.set_grad_enabled(enabled):
        return body(*args)


def _with_autocast(
    device: str, dtype: torch.dtype | None, enabled: bool, cache: bool | None, body: Body, *args: Any
) -> tuple[Any, ...]:
    with torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=cache):
        return body(*args)


def _cond(condition: Any, yes: Body, no: Body, operands: Any = ()) -> Any:
    """Torch's own op, so that whoever follows the run sees a branch."""
    return cond_op(condition, yes, no, operands)


def _while_loop(condition: Body, body: Body, carried: Any, additional: Any = ()) -> Any:
    return while_loop_op(lambda *args: condition(*args)[0], body, tuple(carried), tuple(additional))


_HIGHER_ORDER: dict[str, Callable[..., Any]] = {
    "wrap_with_set_grad_enabled": _with_grad_mode,
    "wrap_with_autocast": _with_autocast,
    "cond": _cond,
    "while_loop": _while_loop,
}
