"""float32: count the upper halves, and compute sums and extremes in the same loop, block by block."""

from __future__ import annotations

import numpy as np
from numba import int32, uint32, uint64
from numpy.typing import NDArray

from torchgauge.weights.kernels.counting import I64, LINE_WORDS, PREFETCH_WORDS, TABLES, U16, U32, U64
from torchgauge.weights.kernels.jit import compiled, entry
from torchgauge.weights.kernels.moments import F64, MEAN, ZEROS, Sums, add_sums, keep_finite, sums_around
from torchgauge.weights.kernels.vectors import (
    FLOATS,
    PATTERNS,
    greater,
    greater_unsigned,
    greatest,
    greatest_unsigned,
    least,
    lesser,
    load_floats,
    load_patterns,
    magnitudes,
    minus,
    plus,
    prefetch,
    product,
    single_from,
    spread_float,
    spread_pattern,
    total,
)  # fmt: skip

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
Extremes = tuple[int, int, int]

# Small enough for accurate sums, and to stay in the cache for a second pass.
BLOCK = 4096
INFINITY = 0xFF << 23


@entry
def tally_singles(
    values: F32, patterns: I32, halves: U16, words: U64, tables: U32, state: F64, special: I64, scratch: F32
) -> None:
    """The first four arrays are the same memory; `special` counts NaN, ±inf and zeros."""
    for start in range(0, values.size, BLOCK):
        stop = min(start + BLOCK, values.size)
        block, own = values[start:stop], patterns[start:stop]
        before = _around_zero(tables)
        guess = state[MEAN]
        sums, extremes = _pass(block, own, halves[2 * start : 2 * stop], words[start // 2 : stop // 2], tables, guess)
        low, high = _ends(extremes)
        if (low & INFINITY) != INFINITY and (high & INFINITY) != INFINITY:
            add_sums(state, block, guess, sums, _value(low), _value(high))
        else:
            block = keep_finite(block, special, scratch)
            low, high = _ends(_extremes(block.view(np.int32)))
            if block.size:
                add_sums(state, block, guess, (np.nan, np.nan, np.nan, np.nan, np.nan), _value(low), _value(high))
        if _around_zero(tables) != before:
            special[ZEROS] += _zeros(block)


@compiled
def _pass(values: F32, patterns: I32, halves: U16, words: U64, tables: U32, guess: float) -> tuple[Sums, Extremes]:
    """Counts, sums around the guess, extremes. With a single table, which is faster to collect, for little data."""
    lines = words.size // LINE_WORDS if tables.shape[0] == TABLES else 0
    done = lines * LINE_WORDS * 2
    for index in range(2 * done + 1, halves.size, 2):
        tables[0, halves[index]] += uint32(1)
    sums, extremes = sums_around(values[done:], guess), _extremes(patterns[done:])
    if not lines:
        return sums, extremes
    more, others = _pass_lines(values, patterns, words, tables, guess)
    return (
        (sums[0] + more[0], sums[1] + more[1], sums[2] + more[2], sums[3] + more[3], sums[4] + more[4]),
        (min(extremes[0], others[0]), max(extremes[1], others[1]), max(extremes[2], others[2])),
    )


@compiled
def _pass_lines(values: F32, patterns: I32, words: U64, tables: U32, guess: float) -> tuple[Sums, Extremes]:
    """Whole cache lines of sixteen values, eight words."""
    one, low = uint32(1), uint64(0xFFFF)
    upper, second_upper, third_upper, fourth_upper = tables[0], tables[1], tables[2], tables[3]
    centre, zero = spread_float(guess), spread_float(0.0)
    first, second, third, fourth, l1 = zero, zero, zero, zero, zero
    lowest, highest, unsigned = spread_pattern(0x7FFFFFFF), spread_pattern(-0x80000000), spread_pattern(0)
    for start in range(0, words.size // LINE_WORDS * LINE_WORDS, LINE_WORDS // 2):
        prefetch(words, start + PREFETCH_WORDS)
        for part in range(0, PATTERNS, FLOATS):
            value = load_floats(values, 2 * start + part)
            distance = minus(value, centre)
            square = product(distance, distance)
            first, second, l1 = plus(first, distance), plus(second, square), plus(l1, magnitudes(value))
            third, fourth = plus(third, product(square, distance)), plus(fourth, product(square, square))
        pattern = load_patterns(patterns, 2 * start)
        lowest, highest = lesser(lowest, pattern), greater(highest, pattern)
        unsigned = greater_unsigned(unsigned, pattern)
        for index in range(start, start + LINE_WORDS // 2, 2):
            word, other = words[index], words[index + 1]
            upper[(word >> uint64(16)) & low] += one
            second_upper[word >> uint64(48)] += one
            third_upper[(other >> uint64(16)) & low] += one
            fourth_upper[other >> uint64(48)] += one
    sums = (total(first), total(second), total(third), total(fourth), total(l1))
    return sums, (least(lowest), greatest(highest), greatest_unsigned(unsigned))


@compiled
def _extremes(patterns: I32) -> Extremes:
    """The smallest and largest pattern as signed integers, and the largest as an unsigned one."""
    low, high, unsigned = int32(0x7FFFFFFF), int32(-0x80000000), uint32(0)
    for index in range(patterns.size):
        pattern = patterns[index]
        low = pattern if pattern < low else low
        high = pattern if pattern > high else high
        unsigned = uint32(pattern) if uint32(pattern) > unsigned else unsigned
    return low, high, unsigned


@compiled
def _ends(extremes: Extremes) -> tuple[int, int]:
    """The bit patterns of the smallest and largest value, or of ±inf or NaN if there are any.

    As integers, the patterns of positive floats ascend and those of negative floats descend: below the positive ones if
    signed, above if unsigned. So the signed minimum belongs to positive values only, or to the negative value nearest
    0.
    """
    low, high, unsigned = extremes
    return low if low >= 0 else int32(unsigned), high if high >= 0 else low


@compiled
def _value(pattern: int) -> float:
    """The float with this pattern; + 0.0 turns −0 into 0."""
    return float(single_from(pattern)) + 0.0


@compiled
def _zeros(block: F32) -> int:
    zeros = 0
    for index in range(block.size):
        zeros += block[index] == 0
    return zeros


@compiled
def _around_zero(tables: U32) -> int:
    """The count of the codes that contain ±0: blocks without them need no search for zeros."""
    count = 0
    for table in range(tables.shape[0]):
        count += int(tables[table, 0]) + int(tables[table, 0x8000])
    return count
