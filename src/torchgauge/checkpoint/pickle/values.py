"""Inert stand-ins for the objects of a pickle. Nothing is imported or called; all compare by identity."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Global:
    """A name that the pickle imports; `name` may be dotted."""

    module: str
    name: str

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(slots=True, eq=False)
class Instance:
    """The result of a call that was not executed."""

    factory: object
    args: tuple[object, ...] = ()
    state: object = None
    mapping: dict[object, object] = field(default_factory=dict)
    items: list[object] = field(default_factory=list)

    @property
    def type_path(self) -> str:
        return self.factory.path if isinstance(self.factory, Global) else "?"


@dataclass(slots=True, eq=False)
class Storage:
    """Bytes elsewhere in the file. `dtype` is None for an untyped one, whose `numel` counts bytes."""

    key: str
    dtype: str | None
    numel: int
    first: int = 0  # of a legacy view: its first element in the storage called `key`


@dataclass(slots=True, eq=False)
class Inline:
    """Bytes within the pickle itself, at `position` of the file."""

    position: int | None
    size: int


@dataclass(slots=True, eq=False)
class Tensor:
    """`storage` None: a meta tensor, or a wrapper around the tensors in `parts`."""

    storage: Storage | Inline | None
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0  # in elements
    is_parameter: bool = False
    is_big_endian: bool = False
    parts: object = None


@dataclass(slots=True, eq=False)
class Blob:
    """A byte string that is too long to read; `at` is its position in the pickle's source."""

    at: int
    size: int


@dataclass(slots=True, eq=False)
class Data:
    """A short byte string, and its position in the pickle's source."""

    content: bytes
    at: int


@dataclass(slots=True, eq=False)
class Key:
    """A dict key that is not hashed, because hashing deeply nested values would overflow the C stack."""

    value: object


def as_key(value: object) -> object:
    if isinstance(value, str) or value is None or isinstance(value, (bytes, bool)):
        return value
    if type(value) is int and abs(value) < 2**60:
        return value
    return Key(value)


def any_storage(identifier: object) -> Storage:
    """Accepts any persistent reference, if only the imports of a pickle matter."""
    return Storage("", "uint8", 0)
