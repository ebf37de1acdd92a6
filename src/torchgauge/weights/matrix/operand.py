"""A matrix made ready for products: read once, held where it is small, scaled where its squares would overflow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import frexp
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.matrix.screening import Screen
from torchgauge.weights.stream.rows import Rows

# Up to here a matrix stays in memory for the passes to come; a larger one is read again for each of them.
HELD_BYTES = 64 << 20
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
