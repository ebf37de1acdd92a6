"""A matrix that comes in blocks, as from a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights import ArrayRows


class BlockedRows(ArrayRows):
    """Blocks of three rows, each in the same memory, which is spoilt before the next."""

    def blocks(self) -> Iterator[NDArray[Any]]:
        whole = next(super().blocks())
        kept = np.empty((3, whole.shape[1]), whole.dtype)
        for start in range(0, len(whole), 3):
            part = whole[start : start + 3]
            kept[: len(part)] = part
            yield kept[: len(part)]
            kept[:] = np.nan
