"""The dimension a softmax runs along, also where the layer leaves it to torch."""

from __future__ import annotations

from torch import nn


def softmax_dim(module: nn.Softmax, ndim: int) -> int:
    """torch's rule for `dim=None`: the first dimension of scalars, vectors and three dimensions, else the second."""
    if module.dim is None:
        return 0 if ndim in (0, 1, 3) else 1
    return module.dim % ndim if ndim else 0
