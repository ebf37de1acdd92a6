"""Stored bytes to float64 values, for tensors small enough to be held."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from torchgauge.errors import FormatError
from torchgauge.weights.symbols import symbol_of, values_of


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
