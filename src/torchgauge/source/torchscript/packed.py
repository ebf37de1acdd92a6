"""Weights that quantized modules keep in objects of C++ (`torch.classes.quantized`), which are no tensors to Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

_CLASSES = "__torch__.torch.classes."


def is_packed_type(kind: Any) -> bool:
    return str(kind.str()).startswith(_CLASSES)


def packed_attributes(script: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights in the packed attributes of a script module itself, named as its state dict has them."""
    if any(map(is_packed_type, script._type().containedTypes())):
        engine: Any = torch._C
        for name, value in engine._jit_debug_module_iterators(script)["named_attributes"]:
            for place, tensor in packed_tensors(value):
                yield f"{name}.{place}", tensor


def packed_tensors(value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights and biases in the state of a packed object, by their places in it: on the meta device, because the
    state is a copy. Numbers that describe a layer are integers and left out."""
    seen: set[tuple[Any, ...]] = set()
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        place, item = waiting.pop()
        if isinstance(item, torch._C.ScriptObject) and is_packed_type(item._type()):
            waiting.append((place, item._get_method("__getstate__")()))
        elif isinstance(item, list | tuple):
            named = [(f"{place}.{number}".lstrip("."), inner) for number, inner in enumerate(item)]
            waiting += reversed(named)
        elif isinstance(item, torch.Tensor) and item.dim() and (item.is_quantized or item.is_floating_point()):
            # An RNN's cell holds its biases beside the layers that hold them too.
            key = (item.untyped_storage()._cdata, item.storage_offset(), item.shape)
            if key not in seen:
                seen.add(key)
                yield (
                    place,
                    torch.empty(item.shape, dtype=torch.int8 if item.is_quantized else item.dtype, device="meta"),
                )
