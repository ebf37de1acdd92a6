"""Stored bytes to numbers as the deep passes want them: float32 where that holds them all."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from torchgauge.errors import FormatError
from torchgauge.weights.counting.patterns import values_of
from torchgauge.weights.counting.symbols import symbol_of

# Types whose values are not all float32 numbers.
_WIDE = ("float64", "int32", "uint32", "int64", "uint64")


def has_numbers(dtype: str) -> bool:
    """One number for each element: not complex, not several in a byte."""
    return symbol_of(dtype).item_bits % 8 == 0 and not dtype.startswith("complex")


def row_values(buffer: NDArray[np.uint8], dtype: str, *, big_endian: bool = False) -> NDArray[Any]:
    """float32, or float64 for types that need it; not finite values stay what they are."""
    if not has_numbers(dtype):
        raise FormatError(f"values of type {dtype} are not numbers one by one")
    symbol = symbol_of(dtype)
    order: Literal[">", "<"] = ">" if big_endian else "<"
    if dtype == "bfloat16":
        return (buffer.view(f"{order}u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    if symbol.item_bits == 8 and symbol.pattern is not None:
        return values_of(symbol.pattern).astype(np.float32)[buffer]
    stored = buffer.view(np.dtype(symbol.name).newbyteorder(order))
    return stored.astype(np.float64 if symbol.name in _WIDE else np.float32)


def without_infinities(values: NDArray[Any]) -> NDArray[Any]:
    """Values that are not finite become 0, in place."""
    # A sum is cheap, and finite unless one of them is not.
    with np.errstate(invalid="ignore", over="ignore"):
        is_finite = np.isfinite(values.sum(dtype=np.float64))
    if not is_finite:
        values[~np.isfinite(values)] = 0
    return values
