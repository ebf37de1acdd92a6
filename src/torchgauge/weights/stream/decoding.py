"""Stored bytes to float64 values, for tensors small enough to be held."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.counting.patterns import values_of
from torchgauge.weights.counting.symbols import symbol_of


def decode(
    buffer: NDArray[np.uint8], dtype: str, *, big_endian: bool = False, elements: int | None = None
) -> NDArray[np.float64]:
    """All values in their order; the parts of complex numbers one after the other. `elements`: of a packed type, where
    the last byte is not full."""
    symbol = symbol_of(dtype)
    if symbol.bits < 8:
        shifts = np.arange(0, 8, symbol.bits, dtype=np.uint8)
        codes = ((buffer[:, None] >> shifts) & np.uint8((1 << symbol.bits) - 1)).reshape(-1)[:elements]
    else:
        stored = np.dtype(symbol.name if symbol.pattern is None else f"u{symbol.bits // 8}")
        codes = buffer.view(stored.newbyteorder(">") if big_endian else stored)
    return codes.astype(np.float64) if symbol.pattern is None else values_of(symbol.pattern)[codes]
