"""Tables that decorators fill; registering a key twice is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")
Function = TypeVar("Function")


class Registry(dict[Key, Value]):
    """`what` names an entry in the error message, such as `meter`."""

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
