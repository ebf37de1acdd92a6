from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Case(NamedTuple):
    """A model to build, a call of it, and its multiply-accumulates by the closed form of its config."""

    build: Callable[[], nn.Module]
    inputs: Mapping[str, Tensor]
    macs: int
    dtype: str | None = None

    @property
    def options(self) -> dict[str, Any]:
        return {"inputs": dict(self.inputs), "dtype": self.dtype}


def ids(batch: int, length: int) -> Tensor:
    return torch.ones(batch, length, dtype=torch.int64)
