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
from torchgauge.source.allowed_ops import bounded, find_dispatched, require_allowed
from torchgauge.source.exported.program import Body

# Checks that the export added: the model itself does not make them.
_CHECK_NAMES = ("_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range",
                "sym_constrain_range_for_size")  # fmt: skip
CHECKS = frozenset(
    getattr(packet, overload)
    for name in _CHECK_NAMES
    if (packet := getattr(torch.ops.aten, name, None)) is not None
    for overload in packet.overloads()
)

# Sizes have 64 bits. Python's integers have no end: a file could ask for one that fills the memory.
_LARGEST = 1 << 63


def _on_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    """Arithmetic on sizes: it takes and gives numbers and truth values, none of them long, and nothing else."""

    def run(*values: Any) -> Any:
        for value in values:
            _require_number(value)
        result = function(*values)
        _require_number(result)
        return result

    return run


def _require_number(value: object) -> None:
    if type(value) not in (int, float, bool):
        raise TypeError(f"arithmetic on sizes takes numbers, not {type(value).__name__}")
    if type(value) is int and abs(value) > _LARGEST:
        raise OverflowError("a size of the exported program does not fit into 64 bits")


def _power(base: Any, exponent: Any) -> Any:
    if abs(base) > 1 and abs(exponent) > 64:
        raise OverflowError("a size of the exported program does not fit into 64 bits")
    return base**exponent


def _shift_left(number: int, places: int) -> int:
    if places > 64:
        raise OverflowError("a size of the exported program does not fit into 64 bits")
    return number << places


def _sum(numbers: Any) -> Any:
    if not isinstance(numbers, list | tuple):
        raise TypeError(f"torch.sym_sum takes a list of sizes, not {type(numbers).__name__}")
    for number in numbers:
        _require_number(number)
    return sum(numbers)


def _item(items: Any, index: Any) -> Any:
    """One of several results."""
    if not isinstance(items, list | tuple) or type(index) is not int:
        raise TypeError(f"one result of several is taken by its number, not {type(index).__name__}")
    return items[index]


_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "_operator.add": operator.add,
    "_operator.sub": operator.sub,
    "_operator.mul": operator.mul,
    "_operator.floordiv": operator.floordiv,
    "_operator.truediv": operator.truediv,
    "_operator.mod": operator.mod,
    "_operator.pow": _power,
    "_operator.lshift": _shift_left,
    "_operator.rshift": operator.rshift,
    "_operator.neg": operator.neg,
    "_operator.pos": operator.pos,
    "_operator.eq": operator.eq,
    "_operator.ne": operator.ne,
    "_operator.lt": operator.lt,
    "_operator.le": operator.le,
    "_operator.gt": operator.gt,
    "_operator.ge": operator.ge,
    "_operator.and_": operator.and_,
    "_operator.or_": operator.or_,
    "_operator.not_": operator.not_,
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
}
_PYTHON = {name: _on_numbers(function) for name, function in _ARITHMETIC.items()}
_PYTHON |= {"_operator.getitem": _item, "torch.sym_sum": _sum}


def function_named(target: str, where: str) -> Callable[..., Any] | None:
    """The function that a node of an archive calls, from tables; None for a check that is left out."""
    if target in _PYTHON:
        return _PYTHON[target]
    match target.split("."):
        case ["torch", "ops", "higher_order", name]:
            return run_higher_order(name)
        case ["torch", "ops", namespace, name, overload]:
            require_allowed(f"{namespace}::{name}", where)
            found = find_dispatched(f"{namespace}::{name}", overload)
            if found is not None:
                return None if found in CHECKS else bounded(f"{namespace}::{name}", found)
    raise FormatError(f"{where} calls {target}, which torchgauge does not know, so it is not run")


def run_higher_order(name: str) -> Callable[..., Any]:
    found = _HIGHER_ORDER.get(name)
    if found is None:
        raise FormatError(f"the exported program calls the higher-order op '{name}', which torchgauge does not run")
    return found


_AUTOCAST_DEVICES = ("cpu", "cuda", "mps", "xpu", "mtia", "hpu", "xla")


def _require_bodies(*bodies: object) -> None:
    for body in bodies:
        if not isinstance(body, Body):
            raise TypeError(f"a higher-order op takes graphs, not {type(body).__name__}")


def _with_grad_mode(enabled: bool, body: Body, *args: object) -> tuple[object, ...]:
    _require_bodies(body)
    with torch.set_grad_enabled(enabled):
        return body(*args)


def _with_autocast(
    device: str, dtype: torch.dtype | None, enabled: bool, cache: bool | None, body: Body, *args: object
) -> tuple[object, ...]:
    _require_bodies(body)
    if device not in _AUTOCAST_DEVICES:
        raise TypeError("autocast takes a kind of device")
    with torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=cache):
        return body(*args)


def _cond(condition: Any, yes: Body, no: Body, operands: object = ()) -> Any:
    """Torch's own op, so that whoever follows the run sees a branch."""
    _require_bodies(yes, no)
    return cond_op(condition, yes, no, operands)


def _while_loop(condition: Body, body: Body, carried: Any, additional: Any = ()) -> Any:
    _require_bodies(condition, body)
    return while_loop_op(lambda *args: condition(*args)[0], body, tuple(carried), tuple(additional))


_HIGHER_ORDER: dict[str, Callable[..., Any]] = {
    "wrap_with_set_grad_enabled": _with_grad_mode,
    "wrap_with_autocast": _with_autocast,
    "cond": _cond,
    "while_loop": _while_loop,
}
