"""A matrix made ready for products: read once, held where it is small, scaled where its squares would overflow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import frexp
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.matrix.screen import Screen
from torchgauge.weights.rows import Rows

# Up to here a matrix stays in memory for the passes to come; a larger one is read again for each of them.
HELD_BYTES = 64 << 20
# The rows that are held while all others pass by, as float64.
PANEL_BYTES = 64 << 20
# Squares of magnitudes between 2**-400 and 2**400, and sums of them, are float64 numbers.
_PLAIN_EXPONENT = 400


@dataclass(frozen=True, slots=True)
class Operand:
    """The matrix in units of 2**exponent. `held` is the whole of it, or None where it is read in blocks each time."""

    rows: Rows
    screen: Screen
    exponent: int
    held: NDArray[Any] | None

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.shape

    @property
    def squared_norm(self) -> float:
        return self.screen.squared_norm(self.exponent)

    def blocks(self) -> Iterator[NDArray[Any]]:
        if self.held is not None:
            yield self.held
            return
        for block in self.rows.blocks():
            yield np.ldexp(block, -self.exponent) if self.exponent else block


def read(rows: Rows) -> Operand:
    """One pass over the rows: screened, and kept if small."""
    screen, held = Screen(*rows.shape), None
    top = 0
    for block in rows.blocks():
        screen.add(block)
        if held is None and rows.shape[0] * rows.shape[1] * block.itemsize <= HELD_BYTES:
            held = np.empty(rows.shape, block.dtype)
        if held is not None:
            held[top : top + len(block)] = block
            top += len(block)
    exponent = _unit(screen.largest)
    if held is not None and exponent:
        np.ldexp(held, -exponent, out=held)
    return Operand(rows, screen, exponent, held)


def _unit(largest: float) -> int:
    exponent = frexp(largest)[1] - 1  # 2**exponent is then itself a float64, for the largest as for the smallest
    return exponent if largest and abs(exponent) > _PLAIN_EXPONENT else 0


Matrix = NDArray[np.float64]

# Float64 copies of parts of the matrix are this large at most, or as many rows as the Gram matrix has.
_PART_BYTES = 8 << 20


def gram_matrix(operand: Operand) -> Matrix:
    rows, columns = operand.shape
    if columns <= rows:
        return _of_columns(operand)
    return _of_rows(operand) if operand.held is None else _of_held_rows(operand.held)


def gram_floor(size: int) -> float:
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
    height = max(1, PANEL_BYTES // (8 * columns))
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
