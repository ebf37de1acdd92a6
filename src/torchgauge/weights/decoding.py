"""Stored bytes to floating-point values."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from torchgauge.errors import FormatError
from torchgauge.weights.symbols import symbol_of, values_of

# Types with values that are not exact in float32.
_FLOAT64_TYPES = ("float64", "int32", "uint32", "int64", "uint64")


def decode(
    buffer: NDArray[np.uint8], dtype: str, *, big_endian: bool = False, elements: int | None = None
) -> NDArray[np.float64]:
    """All values as float64, in order; complex numbers as real and imaginary part. `elements` is needed for sub-byte
    types whose last byte is not full."""
    symbol = symbol_of(dtype)
    if symbol.bits < 8:
        shifts = np.arange(0, 8, symbol.bits, dtype=np.uint8)
        codes = ((buffer[:, None] >> shifts) & np.uint8((1 << symbol.bits) - 1)).reshape(-1)[:elements]
    else:
        stored = np.dtype(symbol.name if symbol.pattern is None else f"u{symbol.bits // 8}")
        codes = buffer.view(stored.newbyteorder(">") if big_endian else stored)
    return codes.astype(np.float64) if symbol.pattern is None else values_of(symbol.pattern)[codes]


def decode_rows(buffer: NDArray[np.uint8], dtype: str, *, big_endian: bool = False) -> NDArray[np.floating]:
    """All values as float32, or float64 for types that need it. NaN and ±inf are kept."""
    symbol = symbol_of(dtype)
    if symbol.item_bits % 8 or dtype.startswith("complex"):
        raise FormatError(f"{dtype} does not store one number per element")
    order: Literal[">", "<"] = ">" if big_endian else "<"
    if dtype == "bfloat16":
        return (buffer.view(f"{order}u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    if symbol.item_bits == 8 and symbol.pattern is not None:
        return values_of(symbol.pattern).astype(np.float32)[buffer]
    stored = buffer.view(np.dtype(symbol.name).newbyteorder(order))
    return stored.astype(np.float64 if symbol.name in _FLOAT64_TYPES else np.float32)


def zero_nonfinite(values: NDArray[np.floating]) -> NDArray[np.floating]:
    """Replace NaN and ±inf by 0, in place."""
    # A sum is cheap, and finite only if every value is.
    with np.errstate(invalid="ignore", over="ignore"):
        is_finite = np.isfinite(values.sum(dtype=np.float64))
    if not is_finite:
        values[~np.isfinite(values)] = 0
    return values
