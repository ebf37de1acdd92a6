"""What the three tables of formulas share: finding a layer's formula, and the words they are written in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import TypeVar

import torch
from torch import nn

from torchgauge.analysis import Analysis
from torchgauge.compat.module_calls import ModuleCall

T = TypeVar("T")
Table = Mapping[type[nn.Module], Callable[..., T]]


def is_in_table(table: Table[T], module: nn.Module) -> bool:
    return any(kind in table for kind in type(module).__mro__)


def by_table(table: Table[T], module: nn.Module, inp: object, out: object, otherwise: Callable[[Analysis], T]) -> T:
    """The formula of the module's class or the closest it inherits from; of other layers, what the project says."""
    formula = next((table[kind] for kind in type(module).__mro__ if kind in table), None)
    if formula is not None:
        return formula(module, first_tensor(inp), first_tensor(out))
    args = tuple(inp) if isinstance(inp, list | tuple) else (inp,)
    return otherwise(ModuleCall(module, args, {}, out).analyze())


def first_tensor(value: object) -> torch.Tensor | None:
    """The first tensor in a nested value."""
    return next(iter(tensors_in(value)), None)


def tensors_in(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [tensor for item in items for tensor in tensors_in(item)]


def batch_of(tensor: torch.Tensor, sample_dims: int) -> int:
    """The batch size, 1 where a sample came without a batch."""
    return tensor.shape[0] if tensor.ndim > sample_dims else 1


def per_sample(tensor: torch.Tensor) -> int:
    """Elements of one sample; the first dimension is the batch."""
    return prod(tensor.shape[1:])


def rows_per_sample(tensor: torch.Tensor) -> int:
    """Vectors along the last dimension in one sample."""
    return prod(tensor.shape[1:-1])


def area(size: int | tuple[int, ...]) -> int:
    """Elements of a two-dimensional kernel."""
    return size * size if isinstance(size, int) else prod(size)


def trainable_params(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters() if p.requires_grad)
