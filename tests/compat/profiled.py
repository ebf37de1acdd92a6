"""A model, its input and the methods that the tests of moduleprofiler's interface share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

FEW: dict[str, Any] = {"num_iters": 4, "drop_first": 1}
METHODS = ["count_params", "trace_io_sizes", "estimate_ops", "estimate_inference_time", "estimate_total_inference_time"]


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))


def x() -> Tensor:
    return torch.zeros(3, 8)


def arguments(method: str) -> tuple[list[Any], dict[str, Any]]:
    if method == "count_params":
        return [net()], {}
    return [net(), x()], FEW if "time" in method else {}


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(8, 4)
        self.never = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)
