"""What several of the adapters need to run a model and to read its layers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


def require_module(model: object) -> None:
    """Raise AttributeError like the originals, with a clear message."""
    if not isinstance(model, nn.Module):
        raise AttributeError(f"the model is a torch.nn.Module, not a {type(model).__name__}; pass an instance")


def device_of(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters() if not p.is_meta), torch.device("cpu"))


@contextmanager
def every_module_called() -> Iterator[None]:
    """Attention as `nn.MultiheadAttention` and the encoder layers write it out: their fast path is one op that passes
    their submodules over, and the originals see it written out."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def softmax_dim(module: nn.Softmax, ndim: int) -> int:
    """torch's rule for `dim=None`: the first dimension of scalars, vectors and three dimensions, else the second."""
    if module.dim is None:
        return 0 if ndim in (0, 1, 3) else 1
    return module.dim % ndim if ndim else 0
