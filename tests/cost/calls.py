"""Calls built from shapes alone, as the capture would describe them."""

from __future__ import annotations

from typing import Any

from torchgauge.cost import Assessment, Call, assess
from torchgauge.facts import Cost, TensorSpec


def spec(*shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(shape, dtype)


def judge(op: str, /, *outputs: TensorSpec, **arguments: Any) -> Assessment:
    return assess(Call(op, arguments, outputs))


def cost(op: str, /, *outputs: TensorSpec, **arguments: Any) -> Cost:
    return judge(op, *outputs, **arguments).cost
