"""A candidate input, and how its tensors are made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from torchgauge.errors import InputError
from torchgauge.source.modules import all_modules
from torchgauge.source.torchscript.scopes import frozen_tensors
from torchgauge.units import format_shape

# The most that an input with values may take: ids and masks need a few MB.
REAL_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Candidate:
    """Arguments for one call of the model; `reason` says what was assumed, None where the user gave it all.

    `has_values`: they are real inputs, not made here for their shapes.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reason: str | None
    has_values: bool = False


@dataclass(frozen=True, slots=True)
class Guess:
    """A value for one parameter of forward, and what it was taken from."""

    value: Any
    source: str


# Guesses by the name of the forward parameter they fill.
Assignment = dict[str, Guess]


@dataclass(frozen=True, slots=True)
class Defaults:
    """What the user may override; `seq` None leaves the length of a sequence to the model."""

    dtype: torch.dtype
    batch: int = 1
    seq: int | None = None

    def floats(self, *shape: int) -> Tensor:
        """A tensor without values: nothing is computed from them."""
        return make_tensor(shape, self.dtype)

    def ids(self, *shape: int, value: int = 1) -> Tensor:
        """A real tensor: models look at their ids, masks and positions."""
        return make_tensor(shape, torch.int64, value=value)


def make_tensor(shape: tuple[int, ...], dtype: torch.dtype, *, value: int = 1) -> Tensor:
    """Without values where the type has fractions, else real and filled with `value`. Shapes may come from a file."""
    try:
        if dtype.is_floating_point or dtype.is_complex:
            return torch.empty(shape, dtype=dtype, device="meta")
        if prod(shape) * dtype.itemsize > REAL_BYTES:
            raise InputError(f"an input of {format_shape(shape)} {str(dtype).removeprefix('torch.')} is too large")
        return torch.full(shape, value, dtype=dtype, device="cpu")
    # Negative sizes, sizes whose product is beyond 64 bits, values that the type does not hold.
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"an input of the shape {shape} cannot be made: {str(error).splitlines()[0]}") from error


def model_dtype(model: nn.Module) -> torch.dtype:
    """The type of the model's first floating parameter, else of its first floating buffer, else torch's default."""
    modules = all_modules(model)
    held = (t for name in ("_parameters", "_buffers") for module in modules for t in getattr(module, name).values())
    tensors = chain((t for t in held if t is not None), _frozen(model))
    # Packed weights of 8 bits and less are storage: no one calls a model with inputs of their type.
    return next((t.dtype for t in tensors if t.is_floating_point() and t.dtype.itemsize > 1), torch.get_default_dtype())


def _frozen(model: nn.Module) -> Iterator[Tensor]:
    """What was a parameter before the model was frozen."""
    if isinstance(model, torch.jit.ScriptModule) and model._c._has_method("forward"):
        for frozen in frozen_tensors(model._c._get_method("forward").graph):
            yield frozen.tensor


def token_value(model: nn.Module) -> int:
    """An id that every vocabulary of the model has: 1, or 0 where one holds a single entry."""
    sizes = [module.num_embeddings for module in all_modules(model) if isinstance(module, nn.Embedding)]
    return min(1, *(size - 1 for size in sizes)) if sizes else 1


def explain(name: str, guess: Guess) -> str:
    """`x 1×3×224×224: the first layer …`."""
    shapes = " and ".join(_shapes(guess.value))
    return f"{name} {shapes}: {guess.source}" if shapes else f"{name} {guess.value!r}: {guess.source}"


def _shapes(value: Any) -> list[str]:
    if isinstance(value, Tensor):
        return [format_shape(value.shape)]
    if isinstance(value, list | tuple):
        return [shape for item in value for shape in _shapes(item)]
    return []
