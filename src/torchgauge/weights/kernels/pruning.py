"""Σv² of every row and column, and the part that 2:4 sparsity keeps, in one pass over a block."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.kernels.jit import compiled, compiled_sums, entry
from torchgauge.weights.kernels.quantization import Values, write_square_sums

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
