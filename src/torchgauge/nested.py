"""Walks over nested lists, tuples, sets and mappings; everything else in them is a leaf.

Some walks are different and stay where they are. `checkpoint.pickle.walk` and `torchscript.archive` read untrusted
values that may contain themselves or one another millions of times: they have limits and visit each value once.
`exported.live` replaces the list classes of torch.fx, and torch's own pytree serves programs that were exported with
it. Some functions of `capture` and `predict.language` also look into caches and other objects, or describe the values
as they go.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

Leaf = TypeVar("Leaf")
Nested = TypeVar("Nested")
Path = tuple[str | int, ...]


def leaves(value: object) -> Iterator[Any]:
    """The leaves in order; a value that is not a container is its own leaf."""
    if isinstance(value, list | tuple | set):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from leaves(item)
    else:
        yield value


def find_all(value: object, kind: type[Leaf]) -> Iterator[Leaf]:
    """The leaves of a type, in order."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, list | tuple | set):
        for item in value:
            yield from find_all(item, kind)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from find_all(item, kind)


def items_of(value: object) -> list[tuple[object, object]] | None:
    """One level of a container or a dataclass: its items with their key or field name, which is None in a sequence.
    None for a leaf."""
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, list | tuple | set):
        return [(None, item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name, None)) for field in fields(value)]
    return None


def find_named(value: object, kind: type[Leaf], path: Path = ()) -> Iterator[tuple[Path, Leaf]]:
    """The leaves of a type with their paths (keys and field names as text, positions as numbers), in order; also those
    in the fields of dataclasses."""
    if isinstance(value, kind):
        yield path, value
    else:
        for position, (key, item) in enumerate(items_of(value) or ()):
            yield from find_named(item, kind, (*path, position if key is None else str(key)))


def replace_all(
    value: Nested, kind: type[Leaf], change: Callable[[Leaf], object], *, in_dataclasses: bool = False
) -> Nested:
    """The value with every leaf of a type replaced; containers keep their type."""
    given: Any = value

    def replaced(item: object) -> Any:
        return replace_all(item, kind, change, in_dataclasses=in_dataclasses)

    if isinstance(given, kind):
        given = change(given)
    elif isinstance(given, tuple) and hasattr(given, "_fields"):
        given = type(given)(*map(replaced, given))
    elif isinstance(given, list | tuple | set):
        given = type(given)(map(replaced, given))
    elif type(given) is dict:
        given = {key: replaced(item) for key, item in given.items()}
    elif isinstance(given, Mapping):
        items, given = list(given.items()), copy.copy(given)
        for key, item in items:
            given[key] = replaced(item)
    elif in_dataclasses and is_dataclass(given) and not isinstance(given, type):
        old, given = given, copy.copy(given)
        for field in fields(old):
            if hasattr(old, field.name):
                object.__setattr__(given, field.name, replaced(getattr(old, field.name)))
    return given


def match_up(structure: object, value: Any) -> Iterator[tuple[Any, Any]]:
    """Each leaf of nested lists and tuples with the part of a value that is in its place."""
    if not isinstance(structure, list | tuple):
        yield structure, value
    elif structure:  # an empty one takes any value
        for inner, part in zip(structure, value, strict=True):
            yield from match_up(inner, part)
