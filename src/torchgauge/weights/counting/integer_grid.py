"""Codes for whole numbers of 32 and 64 bits: fine enough for quantiles, and they determine the upper 16 stored bits.

Of v the magnitude is u = v, or ~v where v is negative, so that both signs have the same cells. A cell of 2**k numbers
keeps the leading 9 bits of u, but k is at most `shift`, the number of bits below the upper 16:

    code = k·256 + (u >> k),  k = min(max(bit length of u − 9, 0), shift);  |v| < 512 is exact
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MANTISSA_BITS = 8
# Above every code of a magnitude: 48·256 + 65,535 for 64 bits without a sign.
SIGN = 1 << 17


def magnitude_bounds(codes: NDArray[np.uint32], shift: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The smallest and the largest magnitude u that each code stands for."""
    plain = (codes & (SIGN - 1)).astype(np.int64)
    k = np.clip((plain >> MANTISSA_BITS) - 1, 0, shift)
    leading = (plain - (k << MANTISSA_BITS)).astype(np.uint64)
    width = k.astype(np.uint64)
    lower = leading << width
    return lower, lower + ((np.uint64(1) << width) - np.uint64(1))


def value_bounds(codes: NDArray[np.uint32], shift: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    smallest, largest = (u.astype(np.float64) for u in magnitude_bounds(codes, shift))
    negative = (codes & SIGN) != 0
    return np.where(negative, -1.0 - largest, smallest), np.where(negative, -1.0 - smallest, largest)


def stored_upper(codes: NDArray[np.uint32], shift: int) -> NDArray[np.uint32]:
    """The upper 16 bits of the stored numbers."""
    upper = (magnitude_bounds(codes, shift)[0] >> np.uint64(shift)).astype(np.uint32)
    return np.where(codes & SIGN, ~upper, upper) & np.uint32(0xFFFF)
