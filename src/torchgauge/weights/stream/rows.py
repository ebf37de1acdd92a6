"""A tensor as a matrix that need not fit into memory: rows are the first dimension, columns all others together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Rows(Protocol):
    """What the deep passes read. A convolution is its matrix: outputs × (inputs · kernel)."""

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> str:
        """The stored type, by torch's name."""
        ...

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """The shape before it became a matrix."""
        ...

    @property
    def shape(self) -> tuple[int, int]: ...

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Consecutive blocks of whole rows, C-contiguous float32 (float64 for types that need it), each call from the
        start. Values that are not finite come as 0. A block is only valid until the next one is asked for."""
        ...


class ArrayRows:
    """A matrix in memory."""

    def __init__(self, name: str, array: NDArray[Any], dtype: str | None = None) -> None:
        self.name = name
        self.dtype = dtype or str(array.dtype)
        self.tensor_shape: tuple[int, ...] = tuple(array.shape)
        matrix = array.reshape(array.shape[0], -1) if array.ndim > 1 and array.size else array.reshape(-1, 1)
        kept = matrix if matrix.dtype in (np.float32, np.float64) else matrix.astype(np.float32)
        finite = np.isfinite(kept)
        self._matrix = np.ascontiguousarray(kept if finite.all() else np.where(finite, kept, kept.dtype.type(0)))

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self._matrix.shape
        return rows, columns

    def blocks(self) -> Iterator[NDArray[Any]]:
        yield self._matrix
