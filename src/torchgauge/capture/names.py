"""The names of a model's inputs, as its forward declares them."""

from __future__ import annotations

from typing import Any

from torch import nn

from torchgauge.capture.recorder import describe_value
from torchgauge.records import InputRecord, TensorSpec
from torchgauge.source.signature import forward_signature


def input_records(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], inferred: str | None
) -> tuple[InputRecord, ...]:
    """One record per tensor given; tensors in containers are named `images[0]`, `batch.mask`."""
    names = _positional_names(model)
    named = {names[i] if i < len(names) else f"input{i}": value for i, value in enumerate(args)} | kwargs
    return tuple(
        InputRecord(name, spec, inferred)
        for argument, value in named.items()
        for name, spec in _named_specs(argument, describe_value(value))
    )


def _named_specs(name: str, value: Any) -> list[tuple[str, TensorSpec]]:
    if isinstance(value, TensorSpec):
        return [(name, value)]
    if isinstance(value, dict):
        return [pair for key, item in value.items() for pair in _named_specs(f"{name}.{key}", item)]
    if isinstance(value, list):
        return [pair for i, item in enumerate(value) for pair in _named_specs(f"{name}[{i}]", item)]
    return []


def _positional_names(model: nn.Module) -> list[str]:
    return [parameter.name for parameter in forward_signature(model).positional]
