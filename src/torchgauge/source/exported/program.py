"""An exported graph, wherever it came from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Ref:
    """The value of this name."""

    name: str


@dataclass(frozen=True, slots=True)
class Place:
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
    places: tuple[Place, ...] = ()
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Graph:
    inputs: tuple[str, ...]
    calls: tuple[Call, ...]
    outputs: Any


@dataclass(frozen=True, slots=True)
class Body:
    """What a graph is to the higher-order op that it is given to: a function of its inputs that gives a tuple."""

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
    """`tensors` and `constants` go by the name of the graph's input; the names in `owners` are those of the model."""

    graph: Graph
    inputs: tuple[Input, ...]
    parameters: dict[str, tuple[str, torch.Tensor]] = field(default_factory=dict)
    buffers: dict[str, tuple[str, torch.Tensor]] = field(default_factory=dict)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    type: str = "ExportedProgram"


def names_in(value: object) -> Iterator[str]:
    """The names that an argument refers to."""
    if isinstance(value, Ref):
        yield value.name
    elif isinstance(value, list | tuple):
        for item in value:
            yield from names_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from names_in(item)


def names_out(outputs: object) -> Iterator[str]:
    if isinstance(outputs, str):
        yield outputs
    elif isinstance(outputs, list | tuple):
        for item in outputs:
            yield from names_out(item)


def resolve(value: object, values: dict[str, object]) -> Any:
    """An argument with its names replaced by their values."""
    if isinstance(value, Ref):
        return values[value.name]
    if isinstance(value, list | tuple):
        return type(value)(resolve(item, values) for item in value)
    if isinstance(value, dict):
        return {key: resolve(item, values) for key, item in value.items()}
    return value


def assign(outputs: object, result: Any, values: dict[str, object]) -> None:
    if isinstance(outputs, str):
        values[outputs] = result
    elif isinstance(outputs, list | tuple) and outputs:
        for item, part in zip(outputs, result, strict=True):
            assign(item, part, values)


_FRAME = re.compile(r'File "([^"\n]{1,1000})", line (\d{1,9})')
_TORCH = re.compile(r"[/\\](?:site|dist)-packages[/\\]torch[/\\]")


def last_line(trace: object) -> str | None:
    """`file:line` of the innermost frame that is not torch's own; torch's where there is no other."""
    frames = _FRAME.findall(trace) if isinstance(trace, str) else []
    frames = [frame for frame in frames if not frame[0].startswith("<")]  # code that torch made
    own = [frame for frame in frames if not _TORCH.search(frame[0])]
    return next((f"{file}:{line}" for file, line in (own or frames)[-1:]), None)
