"""Values that only TorchScript has: instances of script classes, and work put off."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(slots=True, eq=False)
class Instance:
    """An object of a class that is no module; its methods are inlined, so its attributes are all there is."""

    type: str
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Done:
    """The outcome of a fork: run at once, so that the order of the ops is always the same."""

    value: Any


def is_instance(value: Any, types: list[Any]) -> bool:
    return any(_matches(value, kind) for kind in types)


_PYTHON: dict[str, Any] = {
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


def _matches(value: Any, wanted: Any) -> bool:
    kind = wanted.kind()
    if kind == "ClassType":
        return isinstance(value, Instance) and value.type == wanted.str()
    if isinstance(value, bool) and kind == "IntType":
        return False
    if kind in ("OptionalType", "UnionType"):
        return any(_matches(value, inner) for inner in wanted.containedTypes())
    return isinstance(value, _PYTHON[kind]) and _elements_match(value, wanted)


def _elements_match(value: Any, wanted: Any) -> bool:
    inner = wanted.containedTypes()
    if isinstance(value, list):
        return all(_matches(item, inner[0]) for item in value)
    if isinstance(value, tuple):
        return len(value) == len(inner) and all(map(_matches, value, inner))
    if isinstance(value, dict):
        return all(_matches(item, inner[1]) for item in value.values())
    return True
