"""An exported graph, from an archive or a live program, and the functions that its nodes call."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._higher_order_ops.cond import cond_op
from torch._higher_order_ops.while_loop import while_loop_op

from torchgauge.errors import FormatError
from torchgauge.nested import find_all, replace_all
from torchgauge.source.allowed_ops import bounded, find_dispatched, require_allowed


@dataclass(frozen=True, slots=True)
class Ref:
    """The value of this name."""

    name: str


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """A call of a module that a node belongs to: `key` distinguishes the calls of one module."""

    key: str
    path: str
    type: str


@dataclass(frozen=True, slots=True)
class Call:
    """One node: `outputs` is a name, or a nested list of names that the result is taken apart into; `source` is the
    `file:line` it was made from."""

    function: Callable[..., Any]
    args: tuple[object, ...]
    kwargs: dict[str, object]
    outputs: Any
    places: tuple[ModuleCall, ...] = ()
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Graph:
    inputs: tuple[str, ...]
    calls: tuple[Call, ...]
    outputs: Any


@dataclass(frozen=True, slots=True)
class Body:
    """A graph as an argument of a higher-order op: a function of its inputs that returns a tuple."""

    run: Callable[..., tuple[object, ...]]

    def __call__(self, *args: object) -> tuple[object, ...]:
        return self.run(*args)


@dataclass(frozen=True, slots=True)
class Input:
    """An input of the model: a tensor of this shape and type, or a fixed value that the graph does not read."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Program:
    """`parameters`, `buffers` and `constants` are keyed by the name of the graph's input; parameters and buffers also
    have their name in the model."""

    graph: Graph
    inputs: tuple[Input, ...]
    parameters: dict[str, tuple[str, torch.Tensor]] = field(default_factory=dict)
    buffers: dict[str, tuple[str, torch.Tensor]] = field(default_factory=dict)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    type: str = "ExportedProgram"


def names_in(value: object) -> Iterator[str]:
    """The names that an argument refers to."""
    return (ref.name for ref in find_all(value, Ref))


def resolve(value: object, values: dict[str, object]) -> Any:
    """An argument with its names replaced by their values."""
    return replace_all(value, Ref, lambda ref: values[ref.name])


_FRAME = re.compile(r'File "([^"\n]{1,1000})", line (\d{1,9})')
_TORCH = re.compile(r"[/\\](?:site|dist)-packages[/\\]torch[/\\]")


def last_line(trace: object) -> str | None:
    """`file:line` of the innermost frame outside torch, or of the innermost frame if all are torch's."""
    frames = _FRAME.findall(trace) if isinstance(trace, str) else []
    frames = [frame for frame in frames if not frame[0].startswith("<")]  # code that torch made
    own = [frame for frame in frames if not _TORCH.search(frame[0])]
    return next((f"{file}:{line}" for file, line in (own or frames)[-1:]), None)


# Checks that the export added and that the model does not make.
_CHECK_NAMES = ("_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range",
                "sym_constrain_range_for_size")  # fmt: skip
CHECKS = frozenset(
    getattr(packet, overload)
    for name in _CHECK_NAMES
    if (packet := getattr(torch.ops.aten, name, None)) is not None
    for overload in packet.overloads()
)

# Sizes have 64 bits. Python's integers are unbounded: a file could compute one that fills the memory.
_MAX_SIZE = 1 << 63


def _on_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    """Arithmetic on sizes: takes and returns numbers of at most 64 bits and booleans, nothing else."""

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
    if type(value) is int and abs(value) > _MAX_SIZE:
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
        raise TypeError(f"a result is selected by its index, not by {type(index).__name__}")
    return items[index]


_OPERATORS = ("add", "sub", "mul", "floordiv", "truediv", "mod", "rshift", "neg", "pos", "eq", "ne", "lt", "le", "gt",
              "ge", "and_", "or_", "not_")  # fmt: skip
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    **{f"_operator.{name}": getattr(operator, name) for name in _OPERATORS},
    "_operator.pow": _power,
    "_operator.lshift": _shift_left,
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
    """The function that a node of an archive calls, looked up in tables; None for a check, which is skipped."""
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
        raise TypeError("autocast takes a device type, such as cuda or cpu")
    with torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=cache):
        return body(*args)


def _cond(condition: Any, yes: Body, no: Body, operands: object = ()) -> Any:
    """Torch's own op, so that a recorder sees a branch."""
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
