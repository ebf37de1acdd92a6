"""The first pass over a matrix: which rows and columns are dead, constant or duplicates, and the matrix prepared for
products: kept in memory if small, scaled if its squares would overflow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import frexp

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.passes import screen
from torchgauge.weights.rows import Rows

EXAMPLES = 10
_CACHED_PART_BYTES = 256 << 10
_MIN_UNIT = 1e-300
_GOLDEN_RATIO = 0x9E3779B97F4A7C15
_SEEDS = (0x243F6A8885A308D3, 0x13198A2E03707344)  # digits of pi


class Screen:
    """Adds blocks in order. All figures are exact, duplicates up to collisions of a 128-bit hash."""

    def __init__(self, rows: int, columns: int) -> None:
        self._seen = 0
        self._row_hash = np.zeros((rows, 2), np.uint64)
        self._column_hash = np.zeros((2, columns), np.uint64)
        self._column_keys = _hash_keys(0, columns)
        self._row_low, self._row_high = np.zeros(rows), np.zeros(rows)
        self._column_low, self._column_high = np.full(columns, np.inf), np.full(columns, -np.inf)
        self._squares = np.zeros(rows)

    def add(self, block: NDArray[np.floating]) -> None:
        # Parts that stay in the cache, because each is read several times.
        height = max(1, _CACHED_PART_BYTES // max(block[:1].nbytes, 1))
        for top in range(0, len(block), height):
            part = block[top : top + height]
            here = slice(self._seen, self._seen + len(part))
            self._row_low[here], self._row_high[here] = part.min(axis=1), part.max(axis=1)
            np.minimum(self._column_low, part.min(axis=0), out=self._column_low)
            np.maximum(self._column_high, part.max(axis=0), out=self._column_high)
            screen(
                part,
                np.ascontiguousarray(_hash_keys(here.start, len(part)).T),
                self._column_keys,
                self._row_hash[here],
                self._column_hash,
                1 / self._units(here),
                self._squares[here],
                self._row_low.size * self._column_low.size,
            )
            self._seen = here.stop

    def _units(self, here: slice) -> NDArray[np.float64]:
        """The largest magnitude of each row, at least a number with a finite inverse."""
        return np.maximum(np.maximum(-self._row_low[here], self._row_high[here]), _MIN_UNIT)

    @property
    def largest(self) -> float:
        return float(max(self._row_high.max(), -self._row_low.min()))

    def squared_norm(self, exponent: int) -> float:
        """The squared Frobenius norm in units of 4**exponent; every row has its own unit, so nothing overflows."""
        units = np.ldexp(self._units(slice(None)), -exponent)
        return float((self._squares * units * units).sum())

    def counts(self) -> dict[str, int]:
        return {name: len(indices) for name, indices in self._findings.items()}

    def examples(self) -> dict[str, list[object]]:
        """The first few indices of each kind; for duplicates, pairs of the index and the first equal one."""
        return {name: indices[:EXAMPLES].tolist() for name, indices in self._findings.items() if len(indices)}

    @cached_property
    def _findings(self) -> dict[str, NDArray[np.int64]]:
        """After the last block: the indices of each kind."""
        found: dict[str, NDArray[np.int64]] = {}
        sides = (
            ("rows", self._row_low, self._row_high, self._row_hash.T),
            ("columns", self._column_low, self._column_high, self._column_hash),
        )
        for side, low, high, hashes in sides:
            dead = (low == 0) & (high == 0)
            found[f"dead_{side}"] = np.flatnonzero(dead)
            found[f"constant_{side}"] = np.flatnonzero((low == high) & ~dead)
            found[f"duplicate_{side}"] = _duplicate_pairs(hashes, np.flatnonzero(~dead))
        return found


def _duplicate_pairs(hashes: NDArray[np.uint64], candidates: NDArray[np.int64]) -> NDArray[np.int64]:
    """Pairs (index, first equal index), by index. Dead rows are not candidates: they are all equal."""
    if not len(candidates):
        return np.empty((0, 2), np.int64)
    first, second = hashes[:, candidates]
    order = np.lexsort((second, first))  # stable: equal rows stay in ascending order
    same = np.zeros(len(order), bool)
    same[1:] = (np.diff(first[order]) == 0) & (np.diff(second[order]) == 0)
    leader = np.maximum.accumulate(np.where(same, 0, np.arange(len(order))))
    pairs = np.stack([candidates[order[same]], candidates[order[leader[same]]]], axis=1)
    return pairs[np.argsort(pairs[:, 0])]


def _hash_keys(start: int, count: int) -> NDArray[np.uint64]:
    """Two odd multipliers per index, from two streams of splitmix64."""
    index = np.arange(start + 1, start + count + 1, dtype=np.uint64) * np.uint64(_GOLDEN_RATIO)
    words = index[None, :] + np.array(_SEEDS, np.uint64)[:, None]
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (words ^ (words >> np.uint64(31))) | np.uint64(1)


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
    held: NDArray[np.floating] | None

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.shape

    @property
    def unit(self) -> float:
        return float(2.0**self.exponent)

    @property
    def squared_norm(self) -> float:
        return self.screen.squared_norm(self.exponent)

    def blocks(self) -> Iterator[NDArray[np.floating]]:
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
    """The smallest singular value, relative to the largest, that a Gram matrix of `size` rows can distinguish from 0.

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
        stop, top = min(start + height, rows), 0
        panel = np.empty((stop - start, columns))
        for block in operand.blocks():
            first, last = max(start, top), min(stop, top + len(block))
            if first < last:
                panel[first - start : last - start] = block[first - top : last - top]
            top += len(block)
        top = 0
        for block in operand.blocks():
            if top + len(block) > start:
                parts = [panel @ block[at : at + step].astype(np.float64).T for at in range(0, len(block), step)]
                total[start : start + len(panel), top : top + len(block)] = np.concatenate(parts, axis=1)
            top += len(block)
    upper = np.triu(total)
    return upper + np.triu(upper, 1).T
