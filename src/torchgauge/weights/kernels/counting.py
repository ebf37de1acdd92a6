"""Counters of 8-bit and 16-bit symbols, and of codes in large tables."""

from __future__ import annotations

import numpy as np
from numba import uint32, uint64
from numpy.typing import NDArray

from torchgauge.weights.kernels.jit import compiled, entry
from torchgauge.weights.kernels.vectors import prefetch

U8 = NDArray[np.uint8]
U16 = NDArray[np.uint16]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]

# Equal neighbours would wait for each other's counter, so each of four neighbours has its own table.
TABLES = 4
BYTE_TABLES = 8
# Prefetch distance and cache line, in words of 64 bits.
PREFETCH_WORDS = 256
LINE_WORDS = 8


@entry
def count_halves(halves: U16, words: U64, tables: U32) -> None:
    """Count 16-bit symbols. `words` is the same memory without the last few symbols. With a single table, which is
    faster to collect, for little data."""
    one, low = uint32(1), uint64(0xFFFF)
    if tables.shape[0] < TABLES:
        only = tables[0]
        for index in range(halves.size):
            only[halves[index]] += one
        return
    first, second, third, fourth = tables[0], tables[1], tables[2], tables[3]
    lines = words.size // LINE_WORDS
    for line in range(lines):
        start = line * LINE_WORDS
        prefetch(words, start + PREFETCH_WORDS)
        for index in range(start, start + LINE_WORDS):
            word = words[index]
            first[word & low] += one
            second[(word >> uint64(16)) & low] += one
            third[(word >> uint64(32)) & low] += one
            fourth[word >> uint64(48)] += one
    for index in range(lines * LINE_WORDS * 4, halves.size):
        first[halves[index]] += one


@entry
def count_bytes(content: U8, words: U64, tables: U32) -> None:
    """Like `count_halves`, for 8-bit symbols; each of the eight bytes of a word has its own table."""
    one, low = uint32(1), uint64(0xFF)
    whole = words.size if tables.shape[0] == BYTE_TABLES else 0
    for index in range(whole):
        if index % LINE_WORDS == 0:
            prefetch(words, index + PREFETCH_WORDS)
        word = words[index]
        for place in range(BYTE_TABLES):
            tables[place, (word >> uint64(8 * place)) & low] += one
    for index in range(8 * whole, content.size):
        tables[0, content[index]] += one


@entry
def collect_counts(tables: U32, codes: U32, counts: I64) -> int:
    """Move the nonzero counters to `codes` and `counts`, ascending, and reset the tables. Returns their number."""
    size = 0
    for start in range(0, tables.shape[1], 16):
        touched = uint32(0)
        for table in range(tables.shape[0]):
            prefetch(tables, table * tables.shape[1] + start + PREFETCH_WORDS)
            for code in range(start, start + 16):
                touched |= tables[table, code]
        if touched:
            for code in range(start, start + 16):
                total = 0
                for table in range(tables.shape[0]):
                    total += int(tables[table, code])
                    tables[table, code] = uint32(0)
                codes[size] = code
                counts[size] = total
                size += total > 0
    return size


@compiled
def count_codes(codes: U32, table: U32, touched: U32, group_bits: int) -> None:
    """Count codes in a table too large to search; `touched` marks the groups of 2**group_bits counters in use."""
    for index in range(codes.size):
        code = codes[index]
        table[code] += uint32(1)
        touched[code >> uint32(group_bits)] = uint32(1)


@entry
def collect_touched_counts(table: U32, touched: U32, group_bits: int, codes: U32, counts: I64) -> int:
    """Like `collect_counts`; the outputs have room for every code that occurs."""
    size = 0
    for group in range(touched.size):
        if touched[group]:
            touched[group] = uint32(0)
            for code in range(group << group_bits, (group + 1) << group_bits):
                count = table[code]
                if count:
                    codes[size] = code
                    counts[size] = count
                    size += 1
                    table[code] = uint32(0)
    return size
