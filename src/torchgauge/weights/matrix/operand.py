"""A matrix prepared for products: read once, kept in memory if small, scaled if its squares would overflow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import frexp
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.matrix.screen import Screen
from torchgauge.weights.rows import Rows

Matrix = NDArray[np.float64]

# Matrices up to this size stay in memory; larger ones are read again for every pass.
HELD_BYTES = 64 << 20
# Rows that are kept as float64 while all others are multiplied with them.
PANEL_BYTES = 64 << 20
# Float64 copies of parts of the matrix have at most this size, or as many rows as the Gram matrix.
_PART_BYTES = 8 << 20
# Squares of magnitudes between 2**-400 and 2**400, and their sums, stay within float64.
_MAX_UNSCALED_EXPONENT = 400


@dataclass(frozen=True, slots=True)
class Operand:
    """The matrix in units of 2**exponent. `held` is the whole matrix, or None if it is read in blocks every time."""

    rows: Rows
    screen: Screen
    exponent: int
    held: NDArray[Any] | None

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.shape

    @property
    def unit(self) -> float:
        return float(2.0**self.exponent)

    @property
    def squared_norm(self) -> float:
        return self.screen.squared_norm(self.exponent)

    def blocks(self) -> Iterator[NDArray[Any]]:
        if self.held is not None:
            yield self.held
            return
        for block in self.rows.blocks():
            yield np.ldexp(block, -self.exponent) if self.exponent else block


def read_operand(rows: Rows) -> Operand:
    """Screen the rows in one pass, and keep them if small."""
    screen, held = Screen(*rows.shape), None
    top = 0
    for block in rows.blocks():
        screen.add(block)
        if held is None and rows.shape[0] * rows.shape[1] * block.itemsize <= HELD_BYTES:
            held = np.empty(rows.shape, block.dtype)
        if held is not None:
            held[top : top + len(block)] = block
            top += len(block)
    exponent = frexp(screen.largest)[1] - 1  # 2**exponent is then a float64, for the largest as for the smallest
    if not screen.largest or abs(exponent) <= _MAX_UNSCALED_EXPONENT:
        exponent = 0
    if held is not None and exponent:
        np.ldexp(held, -exponent, out=held)
    return Operand(rows, screen, exponent, held)


def gram_floor(size: int) -> float:
    """The smallest singular value, relative to the largest, that a Gram matrix of `size` rows can tell from zero.

    It holds squares, so nothing is known of singular values below σ₁·√(n·ε), about 4e-7 of σ₁ for n = 768.
    """
    return float(np.sqrt(size * np.finfo(np.float64).eps))


def gram_matrix(operand: Operand) -> Matrix:
    """The Gram matrix of the smaller side in float64, which determines all singular values."""
    rows, columns = operand.shape
    if columns <= rows:
        step = max(columns, _PART_BYTES // (8 * columns))
        total = np.zeros((columns, columns))
        for block in operand.blocks():
            for top in range(0, len(block), step):
                part = block[top : top + step].astype(np.float64)
                total += part.T @ part
        return total
    if operand.held is None:
        return _streamed_row_gram(operand)
    step = max(rows, _PART_BYTES // (8 * rows))
    total = np.zeros((rows, rows))
    for left in range(0, columns, step):
        part = operand.held[:, left : left + step].astype(np.float64)
        total += part @ part.T
    return total


def _streamed_row_gram(operand: Operand) -> Matrix:
    """Every row is multiplied with every other: panels of rows are held in turn, and the matrix is read for each."""
    rows, columns = operand.shape
    total = np.zeros((rows, rows))
    height = max(1, PANEL_BYTES // (8 * columns))
    step = max(1, _PART_BYTES // (8 * columns))
    for start in range(0, rows, height):
        panel = _read_panel(operand, start, min(start + height, rows))
        top = 0
        for block in operand.blocks():
            if top + len(block) > start:
                parts = [panel @ block[at : at + step].astype(np.float64).T for at in range(0, len(block), step)]
                total[start : start + len(panel), top : top + len(block)] = np.concatenate(parts, axis=1)
            top += len(block)
    upper = np.triu(total)
    return upper + np.triu(upper, 1).T


def _read_panel(operand: Operand, start: int, stop: int) -> Matrix:
    panel = np.empty((stop - start, operand.shape[1]))
    top = 0
    for block in operand.blocks():
        first, last = max(start, top), min(stop, top + len(block))
        if first < last:
            panel[first - start : last - start] = block[first - top : last - top]
        top += len(block)
    return panel
