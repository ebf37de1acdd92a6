"""One pass over the rows of a block: sums of squares by row and column, 2:4 sparsity; hashes of rows and columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.kernels.jit import compiled, compiled_sums, entry, entry_of_finite
from torchgauge.weights.kernels.quantization import Values, write_square_sums
from torchgauge.weights.passes import FOLD, SPREAD

Floats = NDArray[np.float64]


@entry
def add_energies(block: Values, rows: Floats, columns: Floats) -> float:
    """Set `rows`, add to `columns`, and return the energy of the 2 largest of every 4 values along a row; also 2 of a
    shorter remainder."""
    write_square_sums(block, len(block), rows)
    kept = 0.0
    for row in range(block.shape[0]):
        values = block[row]
        for column in range(values.size):
            value = np.float64(values[column])
            columns[column] += value * value
        kept += _two_of_four(values)
    return kept


@compiled_sums
def _two_of_four(values: Values) -> float:
    total = 0.0
    for quad in range(values.size // 4):
        first, second = np.float64(values[4 * quad]) ** 2, np.float64(values[4 * quad + 1]) ** 2
        third, fourth = np.float64(values[4 * quad + 2]) ** 2, np.float64(values[4 * quad + 3]) ** 2
        total += _two_largest(first, second, third, fourth)
    rest = np.zeros(4)
    for index in range(values.size % 4):
        rest[index] = np.float64(values[values.size // 4 * 4 + index]) ** 2
    return total + _two_largest(rest[0], rest[1], rest[2], rest[3])


@compiled
def _two_largest(first: float, second: float, third: float, fourth: float) -> float:
    winner, loser = (first, second) if first > second else (second, first)
    other_winner, other_loser = (third, fourth) if third > fourth else (fourth, third)
    if winner > other_winner:
        return winner + (other_winner if other_winner > loser else loser)
    return other_winner + (winner if winner > other_loser else other_loser)


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
    """Hashes of rows and columns. `bits` is the same memory as `block`. `squares` are sums of squares, each in the unit
    of its row; column hashes carry over from block to block."""
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
