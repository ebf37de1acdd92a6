"""Tally a run of bytes: views of the bytes by type, counters of the thread, and the resulting tally."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, reduce

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.kernels import float32, float64
from torchgauge.weights.kernels.counting import (
    BYTE_TABLES,
    TABLES,
    collect_counts,
    collect_touched_counts,
    count_bytes,
    count_halves,
)
from torchgauge.weights.kernels.float32 import tally_singles
from torchgauge.weights.kernels.float64 import GROUP_BITS, tally_doubles, tally_integers
from torchgauge.weights.kernels.moments import new_state
from torchgauge.weights.symbols import FLOAT32, FLOAT64, Symbol, symbol_of
from torchgauge.weights.tally import Codes, Counts, Tally, empty_tally, merge_tallies, tally_of_counts

STAGE_BYTES = 1 << 20


class Workspace:
    """Counters and buffers of a thread, reused from run to run: all counters are 0 between two tallies."""

    def __init__(self) -> None:
        self.tables = np.zeros((TABLES, 1 << 16), dtype=np.uint32)
        self.byte_tables = np.zeros((BYTE_TABLES, 1 << 8), dtype=np.uint32)
        self.codes = np.empty(1 << 16, dtype=np.uint32)
        self.counts = np.empty(1 << 16, dtype=np.int64)
        self.singles = np.empty(float32.BLOCK, dtype=np.float32)
        self.busy = False

    @cached_property
    def wide(self) -> NDArray[np.uint32]:
        return np.zeros(1 << float64.CODE_BITS, dtype=np.uint32)

    @cached_property
    def touched(self) -> NDArray[np.uint32]:
        return np.zeros(1 << (float64.CODE_BITS - float64.GROUP_BITS), dtype=np.uint32)

    @cached_property
    def doubles(self) -> NDArray[np.float64]:
        return np.empty(float64.BLOCK)

    @cached_property
    def stage(self) -> NDArray[np.uint8]:
        return np.empty(STAGE_BYTES, dtype=np.uint8)


_OF_THREAD = threading.local()


@contextmanager
def workspace() -> Iterator[Workspace]:
    """The workspace of the calling thread. One that an interrupted tally left dirty is replaced."""
    own: Workspace | None = getattr(_OF_THREAD, "workspace", None)
    if own is None or own.busy:
        own = _OF_THREAD.workspace = Workspace()
    own.busy = True
    yield own
    own.busy = False


Bytes = NDArray[np.uint8]

# Counters have 32 bits.
MAX_RUN_BYTES = 1 << 30
# Below this, collecting counts from several tables costs more than waiting for equal neighbours.
SINGLE_TABLE_MAX_BYTES = 1 << 18


def tally_bytes(buffer: Bytes, dtype: str, *, big_endian: bool = False, elements: int | None = None) -> Tally:
    """Tally a run of whole values of a torch `dtype`, at any address. Thread-safe; mostly runs without the GIL.
    `elements` is needed for sub-byte types whose last byte is not full."""
    symbol = symbol_of(dtype)
    parts = [buffer[start : start + MAX_RUN_BYTES] for start in range(0, len(buffer), MAX_RUN_BYTES)]
    with workspace() as own:
        whole = reduce(merge_tallies, (_tally(part, symbol, big_endian, own) for part in parts), empty_tally(dtype))
    surplus = 0 if elements is None or symbol.pattern is None else whole.count - elements
    if not surplus:
        return whole
    per_byte = 8 // symbol.bits
    counts = whole.counts.copy()
    for place in range(per_byte - surplus, per_byte):
        code = (int(buffer[-1]) >> (place * symbol.bits)) & ((1 << symbol.bits) - 1)
        counts[np.searchsorted(whole.codes, code)] -= 1
    return tally_of_counts(symbol, whole.codes[counts > 0], counts[counts > 0])


def _tally(buffer: Bytes, symbol: Symbol, big_endian: bool, own: Workspace) -> Tally:
    if symbol.pattern is not None:
        return _tally_patterns(buffer, symbol, big_endian, own)
    swapped = symbol.item_bits // 8 if big_endian else 1
    state, special = new_state(), np.zeros(3, dtype=np.int64)
    if symbol.name == FLOAT32.name:
        tables = _tables(own, len(buffer))
        for stage in _stages(buffer, own, swapped):
            single, patterns, halves = stage.view(np.float32), stage.view(np.int32), stage.view(np.uint16)
            tally_singles(single, patterns, halves, _words(stage), tables, state, special, own.singles)
        codes, counts = _collect(tables, own)
    else:
        rest = (own.wide, own.touched, state, special, own.doubles, own.codes)
        for stage in _stages(buffer, own, swapped):
            if symbol.name == FLOAT64.name:
                tally_doubles(stage.view(np.float64), stage.view(np.int64), *rest)
                continue
            numbers = stage.view(symbol.name)
            wide = numbers.view(np.int64) if symbol.item_bits == 64 else numbers.astype(np.int64)
            tally_integers(wide, symbol.name.startswith("int"), symbol.shift, *rest)
        room = min(len(buffer) * 8 // symbol.item_bits, 1 << float64.CODE_BITS)
        codes, counts = np.empty(room, dtype=np.uint32), np.empty(room, dtype=np.int64)
        size = collect_touched_counts(own.wide, own.touched, GROUP_BITS, codes, counts)
        codes, counts = codes[:size].copy(), counts[:size].copy()
    nan, inf, zeros = (int(number) for number in special)
    subnormal = 0
    if symbol.name in (FLOAT32.name, FLOAT64.name):
        # A float with exponent 0 is subnormal or zero.
        mask = np.uint32(0x7F80 if symbol.name == FLOAT32.name else 0x7FF00)
        subnormal = int(counts[(codes & mask) == 0].sum()) - zeros
    _, mean, m2, m3, m4, l1, minimum, maximum, exponent = state.tolist()
    return Tally(
        symbol.name, int(counts.sum()), nan, inf, zeros, subnormal, minimum, maximum,
        mean, m2, m3, m4, l1, codes, counts, int(exponent),
    )  # fmt: skip


def _tally_patterns(buffer: Bytes, symbol: Symbol, big_endian: bool, own: Workspace) -> Tally:
    tables = _tables(own, len(buffer)) if symbol.bits == 16 else own.byte_tables
    for stage in _stages(buffer, own, 1):
        if symbol.bits == 16:
            count_halves(stage.view(np.uint16), _words(stage), tables)
        else:
            count_bytes(stage, _words(stage), tables)
    codes, counts = _collect(tables, own)
    if symbol.bits == 16 and big_endian:
        order = np.argsort(swapped := codes.astype(np.uint16).byteswap().astype(np.uint32))
        codes, counts = swapped[order], counts[order]
    elif symbol.bits < 8:
        # From counts of bytes to counts of the sub-byte codes in them.
        each = np.zeros(1 << symbol.bits, dtype=np.int64)
        for shift in range(0, 8, symbol.bits):
            np.add.at(each, (codes >> shift) & ((1 << symbol.bits) - 1), counts)
        occurring = np.flatnonzero(each)
        codes, counts = occurring.astype(np.uint32), each[occurring]
    return tally_of_counts(symbol, codes, counts)


def _stages(buffer: Bytes, own: Workspace, item_bytes: int) -> Iterator[Bytes]:
    """The buffer itself if kernels can read it; otherwise copies of its parts, aligned and in native byte order."""
    if item_bytes == 1 and buffer.ctypes.data % 8 == 0 and buffer.flags.c_contiguous:
        yield buffer
        return
    for start in range(0, len(buffer), STAGE_BYTES):
        part = buffer[start : start + STAGE_BYTES]
        stage = own.stage[: len(part)]
        stage[:] = part
        if item_bytes > 1:
            stage.view(f"u{item_bytes}").byteswap(inplace=True)
        yield stage


def _words(stage: Bytes) -> NDArray[np.uint64]:
    return stage[: len(stage) // 8 * 8].view(np.uint64)


def _tables(own: Workspace, nbytes: int) -> NDArray[np.uint32]:
    return own.tables[: 1 if nbytes < SINGLE_TABLE_MAX_BYTES else TABLES]


def _collect(tables: NDArray[np.uint32], own: Workspace) -> tuple[Codes, Counts]:
    size = collect_counts(tables, own.codes, own.counts)
    return own.codes[:size].copy(), own.counts[:size].copy()
