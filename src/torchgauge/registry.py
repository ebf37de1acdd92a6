"""Tables that decorators fill, values grouped or summed by key, names of a package that load on first use."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")
Function = TypeVar("Function")
Number = TypeVar("Number", int, float)


class Registry(dict[Key, Value]):
    """Registering a key twice is an error. `what` names an entry in its message, such as `meter`."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def insert(self, key: Key, value: Value) -> None:
        if key in self:
            raise ValueError(f"{self.what} {key!r} is already registered")
        self[key] = value

    def register(self, *keys: Key) -> Callable[[Value], Value]:
        """A decorator that stores the decorated function under each key."""
        return self.register_as(lambda value: value, *keys)

    def register_as(self, make: Callable[[Function], Value], *keys: Key) -> Callable[[Function], Function]:
        """A decorator that stores what `make` returns for the decorated function, under each key."""

        def store(function: Function) -> Function:
            for key in keys:
                self.insert(key, make(function))
            return function

        return store


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """The values of each key, in their order."""
    groups: dict[Key, list[Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def summed(pairs: Iterable[tuple[Key, Number]]) -> dict[Key, Number]:
    """The sum of the values of each key."""
    sums: dict[Key, Number] = {}
    for key, value in pairs:
        sums[key] = sums.get(key, 0) + value
    return sums


def lazy_names(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package. `homes`: the module that defines names, by its name below the package. They are
    its `__all__`, unless it has one already."""
    home_of = {name: f"{package}.{home}" for home, names in homes.items() for name in names}
    vars(sys.modules[package]).setdefault("__all__", sorted(home_of))

    def load(name: str) -> Any:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        with collector_paused():  # what an import makes stays, and the objects of torch are many to search
            value = getattr(importlib.import_module(home), name)
        setattr(sys.modules[package], name, value)
        return value

    return load


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the cyclic garbage collector during many small allocations that stay alive: a collection walks every object
    of the process (0.2 s with transformers loaded). Reference counting still frees objects, so live memory is exact.

    Also a decorator.
    """
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_collecting:
            gc.enable()
