"""The objects of a TorchScript archive: torch hands each out as often as something refers to it.

A list of a list twice, thirty levels deep, is a few hundred bytes in a pickle and a billion lists in Python; so is a
module that has another one under two names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchgauge.checkpoint.byte_source import ByteSource
from torchgauge.checkpoint.pickle import PickleMachine
from torchgauge.checkpoint.pickle.imports import ImportLog
from torchgauge.checkpoint.pickle.values import Instance, any_storage
from torchgauge.errors import FormatError

MOST_VALUES = 1 << 22
_VALUES_OF_OBJECT = 32  # a module takes as much memory in Python as some lists: 131,072 of them are the most


def require_few_objects(source: ByteSource) -> None:
    """Raise `FormatError` where following every reference of the pickle gives too many values."""
    root = PickleMachine(source, ImportLog(), persistent=any_storage).run()
    sizes: dict[int, int] = {}
    open_: set[int] = set()
    waiting = [(root, False)]
    while waiting:
        value, is_done = waiting.pop()
        if id(value) in sizes:
            continue
        children = [child for child in _children(value) if isinstance(child, list | tuple | dict | Instance)]
        if is_done or not children:
            own = _VALUES_OF_OBJECT if isinstance(value, Instance) else 1
            sizes[id(value)] = own + sum(1 for _ in _children(value)) + sum(sizes[id(child)] for child in children)
            open_.discard(id(value))
            if sizes[id(value)] > MOST_VALUES:
                raise FormatError(f"{source.label}: its objects refer to each other too often to be read")
        elif id(value) in open_:
            raise FormatError(f"{source.label}: an object holds itself")
        else:
            open_.add(id(value))
            waiting.append((value, True))
            waiting.extend((child, False) for child in children if id(child) not in sizes)


def _children(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list | tuple):
        yield from value
    elif isinstance(value, Instance):
        yield from (value.args, value.state, value.items, value.mapping)
