"""Tensors in nested arguments and results (containers, named tuples, dataclasses), and the memory behind a tensor."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import torch

# A value of any structure, which a walk keeps.
Nested = TypeVar("Nested")


def map_tensors(value: Nested, change: Callable[[torch.Tensor], object]) -> Nested:
    """The value with every tensor in it replaced by what `change` makes of it; containers keep their type."""
    given: Any = value
    changed: Any = value
    if isinstance(given, torch.Tensor):
        changed = change(given)
    elif isinstance(given, Mapping):
        changed = {key: map_tensors(item, change) for key, item in given.items()}
        if type(given) is not dict:
            items, changed = changed, copy.copy(given)
            for key, item in items.items():
                changed[key] = item
    elif isinstance(given, tuple) and hasattr(given, "_fields"):
        changed = type(given)(*(map_tensors(item, change) for item in given))
    elif isinstance(given, list | tuple | set):
        changed = type(given)(map_tensors(item, change) for item in given)
    elif is_dataclass(given) and not isinstance(given, type):
        changed = copy.copy(given)
        for field in fields(given):
            if hasattr(given, field.name):
                object.__setattr__(changed, field.name, map_tensors(getattr(given, field.name), change))
    return changed


def materialise(tensor: torch.Tensor, device: torch.device, dtype: torch.dtype | None) -> torch.Tensor:
    """An input with values on the device: random where it had none, the same ones every time."""
    floating = tensor.dtype.is_floating_point
    if tensor.is_meta:
        generator = torch.Generator().manual_seed(0)
        tensor = torch.randn(tensor.shape, generator=generator, dtype=torch.float32).to(tensor.dtype)
    return tensor.to(device, dtype if floating else None)


def is_subclass(tensor: torch.Tensor) -> bool:
    """Whether the tensor's class handles ops itself (`DTensor`, torch's own `FakeTensor`, nested, quantized)."""
    own: object = type(tensor).__torch_dispatch__
    return own is not torch.Tensor.__torch_dispatch__


def storage_key(tensor: torch.Tensor) -> int:
    """The same for all views of one storage."""
    return storage_of(tensor)._cdata if tensor.layout is torch.strided or tensor.is_nested else id(tensor)


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    """For our own bookkeeping: past `memory_access`, which watches the model."""
    return torch._C.TensorBase.untyped_storage(packed(tensor))


def packed(tensor: torch.Tensor) -> torch.Tensor:
    """The rows of a nested tensor without its padding, another tensor itself."""
    if not tensor.is_nested:
        return tensor
    with torch.no_grad():
        rows: torch.Tensor = tensor.values()
        # A nested tensor of the older kind gives its elements in one row.
        if rows.dim() > 1 or tensor.dim() < 3 or is_subclass(tensor):
            return rows
        widths = tensor._nested_tensor_size()[:, -1]
        return rows.view(-1, int(widths[0])) if len(widths) and bool((widths == widths[0]).all()) else rows


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """The tensors of an op's arguments or result, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


# A cache of keys and values is an object of objects; deeper ones hold a program rather than results.
_OBJECT_DEPTH = 2


def tensors_within(value: object, depth: int = _OBJECT_DEPTH) -> Iterator[torch.Tensor]:
    """The tensors of a model's result: in mappings, sequences, dataclasses, and the attributes of `depth` levels of
    other objects."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from tensors_within(list(value.values()), depth)
    elif isinstance(value, list | tuple | set):
        for item in value:
            yield from tensors_within(item, depth)
    elif is_dataclass(value) and not isinstance(value, type):
        yield from tensors_within([getattr(value, field.name, None) for field in fields(value)], depth)
    elif depth and hasattr(value, "__dict__") and not isinstance(value, type | torch.nn.Module):
        yield from tensors_within(list(vars(value).values()), depth - 1)
