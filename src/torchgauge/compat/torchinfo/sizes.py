"""The size shown for what a layer is given or returns: that of its first tensor (of a dict, of its last entry)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

Measured = tuple[list[int], int]
NOTHING: Measured = ([], 0)


def measure(value: Any, batch_dim: int | None) -> Measured:
    """Size, and bytes of an element; the size of the batch is given as 1 where `batch_dim` says which it is."""
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, str | type):
        raise TypeError(f"a layer gave {value!r}: neither a tensor nor something that holds one")
    if isinstance(value, Mapping):
        value = list(value.values())[-1:]
    size, element_bytes = _first(value)
    if batch_dim is not None and batch_dim < len(size):
        size = [*size[:batch_dim], 1, *size[batch_dim + 1 :]]
    return size, element_bytes


def _tensor(value: torch.Tensor) -> Measured:
    return list(value.size()), value.element_size()


def _first(value: Any) -> Measured:
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, np.ndarray):
        return list(value.shape), value.itemsize
    if isinstance(value, torch.nn.utils.rnn.PackedSequence):
        return _tensor(value.data)
    if isinstance(value, torch.distributions.Distribution):
        return list(value.batch_shape + value.event_shape), 0
    if hasattr(value, "tensors"):
        return _first(value.tensors)
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value):
        return _first(value[0])
    return NOTHING
