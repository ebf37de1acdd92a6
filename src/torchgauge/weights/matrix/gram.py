"""The Gram matrix of the smaller side, in float64: all of a matrix that its singular values depend on.

It holds the squares of the singular values, so of those below σ₁·√(n·ε) (about 4e-7 of σ₁ for n = 768) it knows
nothing: `floor` says where that is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.matrix.operand import HELD_BYTES, Operand

Matrix = NDArray[np.float64]

# Float64 copies of parts of the matrix are this large at most, or as many rows as the Gram matrix has.
_PART_BYTES = 8 << 20


def gram(operand: Operand) -> Matrix:
    rows, columns = operand.shape
    if columns <= rows:
        return _of_columns(operand)
    return _of_rows(operand) if operand.held is None else _of_held_rows(operand.held)


def floor(size: int) -> float:
    """The smallest singular value, relative to the largest, that a Gram matrix of `size` rows can tell from zero."""
    return float(np.sqrt(size * np.finfo(np.float64).eps))


def _of_columns(operand: Operand) -> Matrix:
    columns = operand.shape[1]
    step = max(columns, _PART_BYTES // (8 * columns))
    total = np.zeros((columns, columns))
    for block in operand.blocks():
        for top in range(0, len(block), step):
            part = block[top : top + step].astype(np.float64)
            total += part.T @ part
    return total


def _of_held_rows(matrix: NDArray[Any]) -> Matrix:
    rows, columns = matrix.shape
    step = max(rows, _PART_BYTES // (8 * rows))
    total = np.zeros((rows, rows))
    for left in range(0, columns, step):
        part = matrix[:, left : left + step].astype(np.float64)
        total += part @ part.T
    return total


def _of_rows(operand: Operand) -> Matrix:
    """Every row has to meet every other: panels of rows are held in turn, and the matrix is read once for each."""
    rows, columns = operand.shape
    total = np.zeros((rows, rows))
    height = max(1, HELD_BYTES // (8 * columns))
    for start in range(0, rows, height):
        panel = _panel(operand, start, min(start + height, rows))
        top = 0
        for block in operand.blocks():
            if top + len(block) > start:
                total[start : start + len(panel), top : top + len(block)] = _products(panel, block)
            top += len(block)
    upper = np.triu(total)
    return upper + np.triu(upper, 1).T


def _panel(operand: Operand, start: int, stop: int) -> Matrix:
    panel = np.empty((stop - start, operand.shape[1]))
    top = 0
    for block in operand.blocks():
        first, last = max(start, top), min(stop, top + len(block))
        if first < last:
            panel[first - start : last - start] = block[first - top : last - top]
        top += len(block)
    return panel


def _products(panel: Matrix, block: NDArray[Any]) -> Matrix:
    step = max(1, _PART_BYTES // (8 * panel.shape[1]))
    parts = [panel @ block[top : top + step].astype(np.float64).T for top in range(0, len(block), step)]
    return np.concatenate(parts, axis=1)
