"""Counters and buffers of a thread, kept from piece to piece: all counters are 0 between two tallies."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.kernels import double, single
from torchgauge.weights.kernels.counting import BYTE_TABLES, TABLES

STAGE_BYTES = 1 << 20


class Workspace:
    def __init__(self) -> None:
        self.tables = np.zeros((TABLES, 1 << 16), dtype=np.uint32)
        self.byte_tables = np.zeros((BYTE_TABLES, 1 << 8), dtype=np.uint32)
        self.codes = np.empty(1 << 16, dtype=np.uint32)
        self.counts = np.empty(1 << 16, dtype=np.int64)
        self.singles = np.empty(single.BLOCK, dtype=np.float32)
        self.busy = False

    @cached_property
    def wide(self) -> NDArray[np.uint32]:
        return np.zeros(1 << double.CODE_BITS, dtype=np.uint32)

    @cached_property
    def touched(self) -> NDArray[np.uint32]:
        return np.zeros(1 << (double.CODE_BITS - double.GROUP_BITS), dtype=np.uint32)

    @cached_property
    def doubles(self) -> NDArray[np.float64]:
        return np.empty(double.BLOCK)

    @cached_property
    def stage(self) -> NDArray[np.uint8]:
        return np.empty(STAGE_BYTES, dtype=np.uint8)


_OF_THREAD = threading.local()


@contextmanager
def workspace() -> Iterator[Workspace]:
    """The thread's own. One that an interrupted tally has left with counts in it is thrown away."""
    own: Workspace | None = getattr(_OF_THREAD, "workspace", None)
    if own is None or own.busy:
        own = _OF_THREAD.workspace = Workspace()
    own.busy = True
    yield own
    own.busy = False
