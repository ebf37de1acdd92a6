"""Tables that decorators fill; registering a key twice is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


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

        def store(value: Value) -> Value:
            for key in keys:
                self.insert(key, value)
            return value

        return store
