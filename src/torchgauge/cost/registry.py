"""One registry: op name -> category and formula. Formulas see names, shapes and tags, never tensors.

A formula returns `Work`. Omit `flops` if all the work is multiply-accumulates (it becomes 2 × macs), and the bytes if
the usual rule holds: each distinct input element is read once, each output is written once.

Kernels that several libraries register, each under its own namespace (`_activation_3a1c9f2::silu_and_mul`), are
recognised by the names of the op and of its arguments. Installed packages can provide formulas (entry points).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from math import inf
from typing import Any, NamedTuple

from torchgauge.facts import CATEGORIES, COUNTED, FREE, UNCOUNTED, Cost, TensorSpec, tensor_specs
from torchgauge.registry import Registry


@dataclass(frozen=True, slots=True)
class Call:
    """One op call as a formula sees it: arguments by their schema names, tensors as `TensorSpec`.

    `inputs` are the distinct input tensors (in `x * x` there is one); by default, all tensors in `arguments`. `tags`
    are torch's tags of the op, and "view" if the outputs alias an input without writing to it. `written` are the
    arguments that it writes to and does not return.
    """

    op: str
    arguments: Mapping[str, Any]
    outputs: tuple[TensorSpec, ...]
    inputs: tuple[TensorSpec, ...] | None = None
    tags: frozenset[str] = field(default_factory=frozenset)
    written: tuple[TensorSpec, ...] = ()

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The argument, or `default` if this overload of the op does not have it, or it is None."""
        value = self.arguments.get(name)
        return default if value is None else value

    @property
    def out(self) -> TensorSpec:
        """The first output; of an op that returns nothing, the first argument that it writes to."""
        return (self.outputs or self.written)[0]

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """The distinct input tensors."""
        return tuple(tensor_specs(self.arguments)) if self.inputs is None else self.inputs

    @property
    def first(self) -> TensorSpec:
        """The first input tensor."""
        return self.tensors[0]

    @property
    def is_arithmetic(self) -> bool:
        """Whether the op does floating or complex arithmetic: integer work is not flops."""
        return any(spec.is_arithmetic for spec in (*self.tensors, *self.outputs, *self.written))

    @property
    def is_complex(self) -> bool:
        """Whether an input is complex."""
        return any(spec.is_complex for spec in self.tensors)


class Work(NamedTuple):
    macs: int = 0
    flops: int | None = None
    bytes_read: int | None = None
    bytes_written: int | None = None


Rule = Callable[[Call], Work]


@dataclass(frozen=True, slots=True)
class Entry:
    category: str
    status: str
    rule: Rule


class Assessment(NamedTuple):
    category: str
    status: str
    cost: Cost


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel by its schema: ops of any namespace that take these arguments. `outputs` describes the results of an op
    without a fake kernel."""

    arguments: frozenset[str]
    entry: Entry
    outputs: Callable[[Call], Sequence[TensorSpec]] | None = None


REGISTRY: Registry[str, Entry] = Registry("formula for")
KERNELS: dict[str, list[Kernel]] = {}
ENTRY_POINTS = "torchgauge.formulas"
# Namespaces of torch itself, whose ops are known by their full name.
_OWN = ("aten", "prims", "prim", "higher_order", "quantized", "_quantized", "quantized_decomposed", "onednn", "mkldnn")


def formula(*ops: str, category: str, status: str = COUNTED) -> Callable[[Rule], Rule]:
    """Register a formula for ops such as "aten::addmm"; it serves all overloads and the in-place form."""
    if category not in CATEGORIES:
        raise ValueError(f"'{category}' is not a category; one of: {', '.join(CATEGORIES)}")
    if status not in (COUNTED, FREE, UNCOUNTED):
        raise ValueError(f"'{status}' is not a status; one of: {COUNTED}, {FREE}, {UNCOUNTED}")
    for op in ops:
        if not isinstance(op, str) or "::" not in op:
            raise ValueError(f"'{op}' is not the name of an op; a name has a namespace, as in 'aten::addmm'")
    return REGISTRY.register_as(partial(Entry, category, status), *ops)


def kernel(
    *names: str, arguments: str, category: str, outputs: Callable[[Call], Sequence[TensorSpec]] | None = None
) -> Callable[[Rule], Rule]:
    """Register a formula for kernels of these names, in any namespace, that have all of the `arguments`."""

    def register(rule: Rule) -> Rule:
        entry = Kernel(frozenset(arguments.split()), Entry(category, COUNTED, rule), outputs)
        for name in names:
            KERNELS.setdefault(name, []).append(entry)
        return rule

    return register


def find(op: str, arguments: Container[str] = ()) -> Entry | None:
    """The entry of an op, or of the op whose in-place form it is ("aten::relu_" -> "aten::relu"); otherwise that of a
    kernel with its name and `arguments`."""
    entry = REGISTRY.get(op) or REGISTRY.get(op.removesuffix("_"))
    if entry is None and not op.startswith("aten::"):
        load_formulas()
        known = find_kernel(op, arguments)
        entry = REGISTRY.get(op) or (known.entry if known else None)
    return entry


def find_kernel(op: str, arguments: Container[str]) -> Kernel | None:
    """The kernel with the name of the op whose arguments the op has; the one with most of them."""
    namespace, _, name = op.rpartition("::")
    if namespace in _OWN:
        return None
    fitting = [known for known in KERNELS.get(name, ()) if all(item in arguments for item in known.arguments)]
    return max(fitting, key=lambda known: len(known.arguments), default=None)


@cache
def load_formulas() -> None:
    """Import the formulas of installed packages; those that fail to load are skipped with a warning."""
    from importlib.metadata import entry_points  # slow to load, and few models have custom ops

    for entry in entry_points(group=ENTRY_POINTS):
        try:
            entry.load()
        except Exception as error:  # whatever the module of a package raises
            warnings.warn(f"the formulas '{entry.name}' ({entry.value}) do not load: {error}", stacklevel=2)


def assess(call: Call) -> Assessment:
    """Category, status and cost of a call. Without a formula, an op is counted by its tags, or uncounted."""
    entry = find(call.op, call.arguments)
    if entry is None:
        return _generic(call)
    if entry.status == FREE:
        work = Work(flops=0, bytes_read=0, bytes_written=0)
    elif getattr(entry.rule, "__module__", "").startswith("torchgauge."):
        work = entry.rule(call)
    else:
        try:
            work = _checked(entry.rule(call))
        except Exception as error:  # whatever a user's formula raises
            name = f"{getattr(entry.rule, '__module__', '')}.{getattr(entry.rule, '__qualname__', entry.rule)}"
            reason = f"{type(error).__name__}: {error}"
            warnings.warn(f"the formula {name} of {call.op} is not used: {reason}", stacklevel=2)
            return _generic(call)
    return Assessment(entry.category, entry.status, price(call, work))


def _generic(call: Call) -> Assessment:
    if "view" in call.tags:
        return Assessment("view", FREE, Cost())
    if not call.outputs and not call.tensors and not call.written:
        return Assessment("other", FREE, Cost())
    # On complex numbers one operation for each part.
    rate = (1 + call.is_complex) if call.is_arithmetic else 0
    if "pointwise" in call.tags:
        # An op that returns a Python bool (`equal`) has no output tensor.
        work = Work(flops=rate * (call.outputs or call.tensors)[0].stored_numel)
        return Assessment("elementwise", COUNTED, price(call, work))
    if "reduction" in call.tags:
        return Assessment("reduction", COUNTED, price(call, Work(flops=rate * call.first.stored_numel)))
    return Assessment("other", UNCOUNTED, price(call, Work(flops=0)))


def _checked(work: Work) -> Work:
    """The result of a user's formula as whole numbers; raises if it is not `Work` or a number is impossible."""
    if not isinstance(work, Work):
        raise TypeError(f"it returned {work!r}, not Work(macs=…, flops=…)")
    for name, number in work._asdict().items():
        if number is not None and not 0 <= number < inf:  # False for nan
            raise ValueError(f"{name} is {number}")
    flops, read, written = (None if number is None else round(number) for number in work[1:])
    return Work(round(work.macs or 0), flops, read, written)


def price(call: Call, work: Work) -> Cost:
    """The cost; figures that the formula omitted follow the usual rules."""
    return Cost(
        macs=work.macs,
        flops=2 * work.macs if work.flops is None else work.flops,
        bytes_read=read_bytes(call) if work.bytes_read is None else work.bytes_read,
        bytes_written=written_bytes(call) if work.bytes_written is None else work.bytes_written,
    )


def read_bytes(call: Call) -> int:
    return sum(spec.distinct_bytes for spec in call.tensors)


def written_bytes(call: Call) -> int:
    return sum(spec.distinct_bytes for spec in (*call.outputs, *call.written))
