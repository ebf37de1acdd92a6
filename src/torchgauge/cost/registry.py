"""One registry: op name -> category and formula. Formulas see names, shapes and tags, never tensors.

A formula returns `Work`. Leave `flops` out where all the work is multiply-accumulates (it becomes 2 × macs), and the
bytes out where the rule of the contract holds: each distinct input element read once, each output written once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torchgauge.facts import CATEGORIES, COUNTED, FREE, UNCOUNTED, Cost, TensorSpec, tensor_specs


@dataclass(frozen=True, slots=True)
class Call:
    """One op call as a formula sees it: arguments by their schema names, tensors as `TensorSpec`.

    `inputs` are the distinct input tensors (in `x * x` the one tensor counts once); left out, all those of `arguments`.
    `tags` are the op's torch tags plus "view" where the outputs alias an input without writing to it.
    """

    op: str
    arguments: Mapping[str, Any]
    outputs: tuple[TensorSpec, ...]
    inputs: tuple[TensorSpec, ...] | None = None
    tags: frozenset[str] = field(default_factory=frozenset)

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The argument, or `default` where this overload of the op has none of that name or it is None."""
        value = self.arguments.get(name)
        return default if value is None else value

    @property
    def out(self) -> TensorSpec:
        """The first output."""
        return self.outputs[0]

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
        return any(spec.is_arithmetic for spec in self._all())

    @property
    def is_complex(self) -> bool:
        """Whether what it works on is complex."""
        return any(spec.is_complex for spec in self.tensors)

    def _all(self) -> Iterator[TensorSpec]:
        yield from self.tensors
        yield from self.outputs


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


REGISTRY: dict[str, Entry] = {}


def formula(*ops: str, category: str, status: str = COUNTED) -> Callable[[Rule], Rule]:
    """Register a formula for ops such as "aten::addmm"; it serves all overloads and the in-place form."""
    if category not in CATEGORIES:
        raise ValueError(f"'{category}' is not a category; one of: {', '.join(CATEGORIES)}")

    def register(rule: Rule) -> Rule:
        for op in ops:
            if op in REGISTRY:
                raise ValueError(f"'{op}' has a formula already ({REGISTRY[op].rule.__name__})")
            REGISTRY[op] = Entry(category, status, rule)
        return rule

    return register


def find(op: str) -> Entry | None:
    """The entry of an op, or of the op whose in-place form it is ("aten::relu_" -> "aten::relu")."""
    return REGISTRY.get(op) or REGISTRY.get(op.removesuffix("_"))


def assess(call: Call) -> Assessment:
    """Category, status and cost of a call. An op without a formula is generic by its tags, else uncounted."""
    entry = find(call.op)
    if entry is None:
        return _generic(call)
    work = Work(flops=0, bytes_read=0, bytes_written=0) if entry.status == FREE else entry.rule(call)
    return Assessment(entry.category, entry.status, price(call, work))


def price(call: Call, work: Work) -> Cost:
    """Fill in what a formula left to the contract's rules."""
    return Cost(
        macs=work.macs,
        flops=2 * work.macs if work.flops is None else work.flops,
        bytes_read=read_bytes(call) if work.bytes_read is None else work.bytes_read,
        bytes_written=written_bytes(call) if work.bytes_written is None else work.bytes_written,
    )


def read_bytes(call: Call) -> int:
    return sum(spec.distinct_bytes for spec in call.tensors)


def written_bytes(call: Call) -> int:
    return sum(spec.distinct_bytes for spec in call.outputs)


def _generic(call: Call) -> Assessment:
    if "view" in call.tags:
        return Assessment("view", FREE, Cost())
    if not call.outputs and not call.tensors:
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
