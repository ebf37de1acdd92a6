"""Hashes of rows and columns, and sums of squares, in one pass over a block."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.kernels.jit import entry_of_finite
from torchgauge.weights.passes import FOLD, SPREAD

_ZERO = np.uint64(0)


@entry_of_finite
def screen(
    block: NDArray[Any],
    bits: NDArray[Any],
    row_keys: NDArray[np.uint64],
    column_keys: NDArray[np.uint64],
    row_hash: NDArray[np.uint64],
    column_hash: NDArray[np.uint64],
    inverse_units: NDArray[np.float64],
    squares: NDArray[np.float64],
) -> None:
    """`bits` is the same memory as `block`. `squares` are sums of squares, each in the unit of its row; column hashes
    carry over from block to block."""
    rows, columns = block.shape
    column_key1, column_key2 = column_keys[0], column_keys[1]
    column_hash1, column_hash2 = column_hash[0], column_hash[1]
    for i in range(rows):
        values, words = block[i], bits[i]
        key1, key2 = row_keys[i, 0], row_keys[i, 1]
        hash1, hash2 = _ZERO, _ZERO
        for j in range(columns):
            # −0 equals 0, so both must have the same hash.
            word = np.uint64(words[j]) if values[j] != 0 else _ZERO
            word *= SPREAD
            word ^= word >> FOLD
            hash1 += word * column_key1[j]
            hash2 += word * column_key2[j]
            column_hash1[j] += word * key1
            column_hash2[j] += word * key2
        row_hash[i, 0], row_hash[i, 1] = hash1, hash2
        inverse, total = inverse_units[i], 0.0
        for j in range(columns):
            relative = np.float64(values[j]) * inverse
            total += relative * relative
        squares[i] = total
