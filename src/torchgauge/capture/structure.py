"""Tensors in nested arguments and results (containers, named tuples, dataclasses), and the memory behind a tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from torchgauge.nested import Nested, find_all, items_of, replace_all


def map_tensors(value: Nested, change: Callable[[torch.Tensor], object]) -> Nested:
    """The value with every tensor in it replaced by what `change` makes of it; containers keep their type."""
    return replace_all(value, torch.Tensor, change, in_dataclasses=True)


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
    return find_all(value, torch.Tensor)


# A cache of keys and values is an object of layers, and a decoder with an encoder has an object of two caches; deeper
# ones hold a program rather than results.
_OBJECT_DEPTH = 3


def tensors_within(value: object, depth: int = _OBJECT_DEPTH) -> Iterator[torch.Tensor]:
    """The tensors of a model's result: in mappings, sequences, dataclasses, and the attributes of `depth` levels of
    other objects."""
    if isinstance(value, torch.Tensor):
        yield value
        return
    items = items_of(value)
    if items is None and depth and hasattr(value, "__dict__") and not isinstance(value, type | torch.nn.Module):
        items, depth = items_of(vars(value)), depth - 1
    for _, item in items or ():
        yield from tensors_within(item, depth)
