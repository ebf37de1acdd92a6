"""A graph made ready to run: blocks of steps, each with the values that die with it; script objects, deferred work."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

# A value of a graph: tensors, numbers, texts, containers of them, modules and objects. Steps are typed by their nodes.
Value = Any
Run = Callable[..., Value]
# A node, a graph or a type of torch's JIT, whose stubs lack most of what is asked of them.
JitObject = Any


@dataclass(slots=True)
class Step:
    """One node: `run` takes its inputs, after the frame where `takes_frame`, and gives one value or a tuple of several.

    `scope` is the path of the module that the node was inlined from, if a frozen graph still has it.
    """

    run: Run
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    takes_frame: bool = False
    source: str | None = None
    scope: tuple[str, ...] = ()
    blocks: tuple[Block, ...] = ()
    is_constant: bool = False
    makes_tensors: bool = True
    dead: tuple[int, ...] = ()


@dataclass(slots=True)
class Block:
    parameters: tuple[int, ...]
    results: tuple[int, ...]
    steps: list[Step] = field(default_factory=list)


def free_after_last_use(block: Block) -> None:
    """Note with each step the values of this block that no later step reads: memory is live as long as it is there."""
    owned = {*block.parameters, *(slot for step in block.steps for slot in step.outputs)}
    alive = set(block.results)
    for step in reversed(block.steps):
        touched = {*reads(step), *step.outputs} & owned
        step.dead = tuple(touched - alive)
        alive |= touched
        for inner in step.blocks:
            free_after_last_use(inner)


def reads(step: Step) -> set[int]:
    """All values that a step reads; of those its blocks read, the ones that are made outside them."""
    found = set(step.inputs)
    for block in step.blocks:
        made = {*block.parameters, *(slot for inner in block.steps for slot in inner.outputs)}
        found |= (set(block.results) | reads_of(block.steps)) - made
    return found


def reads_of(steps: Iterable[Step]) -> set[int]:
    return {slot for step in steps for slot in reads(step)}


class Unsupported(Exception):  # noqa: N818 - a signal
    """A node that is not run here: the module has to run in torch's own engine."""


@dataclass(frozen=True, slots=True)
class EnumMember:
    """A member of an enum: both names are those of the graph. Torch would look its class up in Python."""

    type: str
    name: str


class EnumClass:
    """Stands for an enum's class: whatever torch asks it for by a name of the graph is a member."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattribute__(self, name: str) -> EnumMember:
        return EnumMember(object.__getattribute__(self, "_name"), name)


@dataclass(slots=True, eq=False)
class Instance:
    """An object of a class that is not a module; its methods are inlined, so its attributes are all there is."""

    type: str
    attributes: dict[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Done:
    """The outcome of a fork: run at once, so that the order of the ops is always the same."""

    value: Value


def is_instance(value: Value, types: list[JitObject]) -> bool:
    return any(_matches(value, kind) for kind in types)


_PYTHON: dict[str, type] = {
    "TensorType": torch.Tensor,
    "IntType": int,
    "FloatType": float,
    "ComplexType": complex,
    "BoolType": bool,
    "StringType": str,
    "NoneType": type(None),
    "DeviceObjType": torch.device,
    "ListType": list,
    "TupleType": tuple,
    "DictType": dict,
}


def _matches(value: Value, wanted: JitObject) -> bool:
    kind = wanted.kind()
    if kind == "ClassType":
        return isinstance(value, Instance) and value.type == wanted.str()
    if isinstance(value, bool) and kind == "IntType":
        return False
    if kind in ("OptionalType", "UnionType"):
        return any(_matches(value, inner) for inner in wanted.containedTypes())
    if not isinstance(value, _PYTHON[kind]):
        return False
    inner = wanted.containedTypes()
    if isinstance(value, list):
        return all(_matches(item, inner[0]) for item in value)
    if isinstance(value, tuple):
        return len(value) == len(inner) and all(map(_matches, value, inner))
    return not isinstance(value, dict) or all(_matches(item, inner[1]) for item in value.values())
