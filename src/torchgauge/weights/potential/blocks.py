"""Blocks of a matrix in a unit in which nothing overflows when it is squared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.stream.rows import Rows


def common_exponent(rows: Rows) -> int:
    """0 for float32, whose squares float64 can hold; for float64 it takes a reading of its own."""
    largest = 0.0
    for block in rows.blocks():
        if block.dtype == np.float32:
            return 0
        largest = max(largest, float(block.max(initial=0.0)), -float(block.min(initial=0.0)))
    return int(np.frexp(largest)[1])


def scaled_blocks(rows: Rows, exponent: int) -> Iterator[NDArray[Any]]:
    """In units of 2**exponent; whole rows."""
    for block in rows.blocks():
        yield np.ldexp(block, -exponent) if exponent else block
