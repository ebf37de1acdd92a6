"""Find the tensors and modules in the value of a pickle, and name them by their paths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import TypeGuard

from torchgauge.checkpoint import limits
from torchgauge.checkpoint.byte_source import printable
from torchgauge.checkpoint.dtypes import item_bytes
from torchgauge.checkpoint.index import PickledModule, Role
from torchgauge.checkpoint.pickle.values import Instance, Key, Tensor
from torchgauge.errors import FormatError

Path = tuple[str, ...]
_LOCAL = "_local_tensor"  # of a DTensor, which also describes its mesh
_VALUES_PER_BYTE = 16  # no packing has more: a wrapper that claims more is corrupt
_CONTAINERS = (dict, list, tuple, Instance, Tensor)


@dataclass(slots=True, eq=False)
class Found:
    """A tensor, its path, and its role if the file declares it.

    `logical` is for the parts of a wrapper (a quantized weight and its scales): the number of values of the whole for
    the largest part, 0 for the others.
    """

    path: Path
    tensor: Tensor
    role: Role | None = None
    logical: int | None = None


@dataclass(slots=True)
class Walk:
    tensors: list[Found] = field(default_factory=list)
    modules: list[PickledModule] = field(default_factory=list)
    values_left: int = limits.WALK_STEPS
    steps_left: int = field(default_factory=lambda: limits.PATH_STEPS)
    characters_left: int = limits.NAME_CHARACTERS

    @property
    def is_module(self) -> bool:
        """The whole file is one pickled module."""
        return bool(self.modules) and self.modules[0].path == ""


@dataclass(slots=True, eq=False)
class _Child:
    keys: Path
    value: object
    role: Role | None = None


def walk(root: object) -> Walk:
    """Every tensor under every path to it; a value that contains itself is visited once."""
    found = Walk()
    continue_walk(found, root, (), None)
    return found


def continue_walk(found: Walk, root: object, path: Path, role: Role | None) -> None:
    """Add the tensors under `root`, which is at `path`; the limits apply to all together."""
    before = found.values_left
    # The ids of all values that contain a tensor or a module, at any depth. Each container is visited once.
    parents: dict[int, list[int]] = {id(root): []}
    sources = [id(root)] if _is_source(root) else []
    waiting = [root]
    while waiting:
        value = waiting.pop()
        # Most containers are dicts of tensors, whose keys do not matter here.
        inside = value.values() if type(value) is dict else (child.value for child in children(value))
        for inner in inside:
            found.values_left -= 1
            if found.values_left < 0:
                raise FormatError("it contains too many values")
            if not isinstance(inner, _CONTAINERS):
                continue
            if id(inner) not in parents:
                parents[id(inner)] = []
                if not _is_leaf(inner):
                    waiting.append(inner)
                if _is_source(inner):
                    sources.append(id(inner))
            parents[id(inner)].append(id(value))
    fertile = set(sources)
    while sources:
        for parent in parents[sources.pop()]:
            if parent not in fertile:
                fertile.add(parent)
                sources.append(parent)
    found.steps_left = max(found.steps_left, 2 * (before - found.values_left))
    _visit(_Child((), root, role), path, fertile, set(), found)


def _visit(child: _Child, path: Path, fertile: set[int], above: set[int], found: Walk) -> None:
    """The depth is limited below Python's recursion limit."""
    value = child.value
    path = path + child.keys
    found.characters_left -= len(path[0]) if len(path) == 1 else sum(map(len, path))
    if len(above) > limits.WALK_DEPTH or found.characters_left < 0:
        raise FormatError("its values are nested too deeply, or their names are too long")
    if _is_leaf(value):
        found.tensors.append(Found(path, value, child.role or (Role.PARAMETER if value.is_parameter else None)))
        return
    first = len(found.tensors)
    if isinstance(value, Instance) and is_module(value):
        found.modules.append(PickledModule(".".join(path), printable(value.type_path)))
    for inner in children(value):
        found.steps_left -= 1
        if found.steps_left < 0:
            raise FormatError("its values refer to each other too often to be listed")
        if id(inner.value) in fertile and id(inner.value) not in above:
            below = above if _is_leaf(inner.value) else above | {id(inner.value)}
            # The items of a list attribute have the role of the attribute; a module declares the roles of its tensors.
            if child.role is not None and inner.role is None and not (isinstance(value, Instance) and is_module(value)):
                inner = _Child(inner.keys, inner.value, child.role)
            _visit(inner, path, fertile, below, found)
    if isinstance(value, Tensor) and len(parts := found.tensors[first:]) > 1:
        # A wrapper: its values count for the largest part. Of nested wrappers, the outer one decides.
        sizes = [prod(part.tensor.shape) * item_bytes(part.tensor.dtype) for part in parts]
        values, largest = prod(value.shape), sizes.index(max(sizes))
        if values <= _VALUES_PER_BYTE * sum(sizes):
            for number, part in enumerate(parts):
                part.logical = values if number == largest else 0


def _is_leaf(value: object) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.parts is None


def _is_source(value: object) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, Instance) and is_module(value))


def is_module(value: Instance) -> bool:
    state = attributes(value)
    return isinstance(state.get("_modules"), dict) and isinstance(state.get("_parameters"), dict)


def attributes(value: Instance) -> dict[object, object]:
    return state_attributes(value.state)


def state_attributes(state: object) -> dict[object, object]:
    """The attributes that a state would set: a dict, or a pair of dicts for attributes and slots."""
    if isinstance(state, dict):
        return state
    if isinstance(state, tuple):
        return {key: item for part in state if isinstance(part, dict) for key, item in part.items()}
    return {}


def children(value: object) -> Iterator[_Child]:
    if isinstance(value, dict):
        yield from (_Child((key_text(key),), item) for key, item in value.items())
    elif isinstance(value, list | tuple):
        yield from (_Child((str(number),), item) for number, item in enumerate(value))
    elif isinstance(value, Tensor):
        # The only tensor of a wrapper gets the name of the wrapper, and so does the local part of a DTensor.
        state = state_attributes(value.parts)
        held = state or ([] if isinstance(value.parts, Tensor) else value.parts)
        inner = list(children({_LOCAL: state[_LOCAL]} if _LOCAL in state else held))
        tensors = [child for child in inner if isinstance(child.value, Tensor)]
        role = Role.PARAMETER if value.is_parameter else None
        if len(tensors) == 1:
            yield _Child((), tensors[0].value, role)
        else:
            yield from inner
    elif isinstance(value, Instance) and is_module(value):
        state = attributes(value)
        known = {"_parameters": Role.PARAMETER, "_buffers": Role.BUFFER, "_modules": None}
        for group, declared in known.items():
            items = state.get(group)
            for key, item in items.items() if isinstance(items, dict) else ():
                yield _Child((key_text(key),), item, declared)
        for key, item in state.items():
            if key not in known:
                yield _Child((key_text(key),), item, Role.OTHER)
    elif isinstance(value, Instance):
        yield from children(value.args)
        yield from children(value.items)
        yield from children(value.mapping)
        state = attributes(value)
        if state:
            yield from children(state)
        elif value.state is not None:
            yield _Child(("state",), value.state)


def key_text(key: object) -> str:
    if isinstance(key, str) and key.isascii():
        return key
    if isinstance(key, Key):
        value = key.value
        parts = value if isinstance(value, tuple) else (None,)
        is_short = all(isinstance(part, str) or (isinstance(part, int) and abs(part) < 2**60) for part in parts)
        return ",".join(printable(str(part)) for part in parts) if is_short else type(value).__name__
    if isinstance(key, bytes):
        key = key.decode("utf-8", "replace")
    return key.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(key, str) else str(key)
