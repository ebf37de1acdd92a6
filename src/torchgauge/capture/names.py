"""The names of a model's inputs, as its forward declares them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import nn

from torchgauge.capture.twin import is_plain
from torchgauge.source.signature import forward_signature


def named_inputs(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor given; those in containers are named `images[0]`, `batch.mask`."""
    names = _positional_names(model)
    named = {names[i] if i < len(names) else f"input{i}": value for i, value in enumerate(args)} | kwargs
    for argument, value in named.items():
        yield from _named_tensors(argument, value)


def _named_tensors(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _named_tensors(f"{name}.{key}", item)
    elif isinstance(value, list | tuple | set):
        for place, item in enumerate(value):
            yield from _named_tensors(f"{name}[{place}]", item)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _named_tensors(f"{name}.{field.name}", getattr(value, field.name, None))
    elif is_plain(type(value)):  # a cache of keys and values
        for attribute, item in getattr(value, "__dict__", {}).items():
            yield from _named_tensors(f"{name}.{attribute}", item)


def _positional_names(model: nn.Module) -> list[str]:
    return [parameter.name for parameter in forward_signature(model).positional]
