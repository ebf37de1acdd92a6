"""From `input_size` or `input_data` to the arguments of the model, and what is said of them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from torchgauge.source.candidate import make_tensor


@dataclass(frozen=True, slots=True)
class Inputs:
    """`sizes` keeps the structure of what was given, with sizes for tensors; empty where nothing was."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    sizes: Any = field(default_factory=list)
    nbytes: int = 0


def from_data(data: Any) -> Inputs:
    """A tensor or array is the only argument, a sequence all of them, a mapping the keywords."""
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    if isinstance(data, torch.Tensor | np.ndarray):
        args = (data,)
    elif isinstance(data, Mapping):
        kwargs = dict(data)
    elif isinstance(data, list | tuple):
        args = tuple(data)
    else:
        raise RuntimeError(f"input_data is a tensor, a list of arguments or a dict of keywords, not {data!r}")
    nbytes = sum(int(tensor.nbytes) for tensor in _tensors(data))
    return Inputs(args, kwargs, _mapped(data, lambda tensor: torch.Size(tensor.shape)), nbytes)


def from_size(size: Any, dtypes: Sequence[Any] | None, batch_dim: int | None) -> Inputs:
    """Tensors of one size or several; `batch_dim` is where a batch of one is put in."""
    sizes = correct_sizes(size)
    kinds = [torch.float32] * len(sizes) if dtypes is None else [_dtype(kind) for kind in dtypes]
    # Random integers below one are zero: an index that every table has.
    made = [make_tensor(_batched(one, batch_dim), kind, value=0) for one, kind in zip(sizes, kinds, strict=False)]
    return Inputs(tuple(made), {}, sizes, sum(tensor.nbytes for tensor in made))


def correct_sizes(size: Any) -> list[Any]:
    """A list of sizes, whichever way they were given."""
    if not isinstance(size, list | tuple):
        raise TypeError(f"input_size is a tuple of numbers or a list of such, not a {type(size).__name__}")
    if not size or any(number <= 0 for number in _numbers(size)):
        raise ValueError(f"input_size has no number, or one that is not positive: {size}")
    if isinstance(size[0], list | tuple):
        return list(size)
    return [tuple(size) if isinstance(size, list) else size]


def _dtype(kind: Any) -> torch.dtype:
    """A dtype may be given as torch.LongTensor too, which has one."""
    found = getattr(kind, "dtype", kind)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"dtypes holds {kind!r}, which is not a torch dtype")
    return found


def _batched(size: Any, batch_dim: int | None) -> tuple[int, ...]:
    numbers = [operator.index(number) for number in size]  # TypeError for a fraction, as torch has it
    if batch_dim is not None:
        last = len(numbers)
        if not -last - 1 <= batch_dim <= last:
            raise IndexError(f"batch_dim {batch_dim} is out of range for {size}: from {-last - 1} to {last}")
        numbers.insert(batch_dim if batch_dim >= 0 else last + 1 + batch_dim, 1)
    return tuple(numbers)


def _numbers(size: Any) -> Iterator[Any]:
    for item in size:
        if isinstance(item, list | tuple):
            yield from _numbers(item)
        else:
            yield item


def _tensors(data: Any) -> list[Any]:
    found: list[Any] = []
    _mapped(data, found.append)
    return found


def _mapped(data: Any, action: Callable[[Any], Any]) -> Any:
    """The structure with `action` done to every tensor and array."""
    if isinstance(data, torch.Tensor | np.ndarray):
        return action(data)
    if isinstance(data, Mapping):
        return {name: _mapped(item, action) for name, item in data.items()}
    if isinstance(data, list | tuple):
        items = [_mapped(item, action) for item in data]
        return tuple(items) if isinstance(data, tuple) else items
    return data
