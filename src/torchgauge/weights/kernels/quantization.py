"""What quantization takes from a run of values: the arithmetic of `formats` in loops that become vector instructions.

Adding 1.5 · 2**m and taking it away again rounds to a multiple of the unit in the sum's last place, ties to even. That
does not survive fast-math, which numba hands down to a function's callees unless they refuse it, as `compiled` does.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.kernels.jit import compiled, compiled_sums, entry
from torchgauge.weights.number_formats import FORMATS, GROUP, NF4, Float8, Format, Whole, exponent_reach

Values = NDArray[Any]

WHOLE, FLOAT8, LEVELS = 0, 1, 2


# Plain tuples: numba's cache would otherwise hold on to the name of their class, and fail when it changes.
#
# Constants of the formats, in their order and in the type of the values: kinds; limits, magic numbers and smallest
# normal numbers; nf4's levels and their middles; masks of the exponent and of the magnitude.
Grids = tuple[NDArray[np.int64], Values, Values, Values]
# Groups of values, one to a row and filled up with zeros, which stay zeros in every format: loops of even length from 0
# become vector instructions. Values, residuals and spare room; the patterns of the same memory; the magnitude of each
# group that is scaled to a format's limit; the unit of each group, in which its values are about 1 at most; room for a
# sum of each.
Room = tuple[Values, Values, Values, NDArray[np.float64], NDArray[np.float64]]
VALUES, RESIDUALS, SPARE = 0, 1, 2
LIMIT, MAGIC, SMALLEST = 0, 1, 2
EXPONENT, MAGNITUDE = 0, 1


@cache
def grids(dtype: np.dtype[Any]) -> Grids:
    mantissa, all_bits = np.finfo(dtype).nmant, np.iinfo(integers_of(dtype)).max
    limits = [format.limit for format in FORMATS]
    magic = [1.5 * 2.0 ** (mantissa - _mantissa_bits(format)) for format in FORMATS]
    smallest = [2.0**format.least_exponent if isinstance(format, Float8) else 0.0 for format in FORMATS]
    return (
        np.array([_kind(format) for format in FORMATS]),
        np.array([limits, magic, smallest], dtype),
        np.array([NF4.levels, [*NF4.middles(dtype), np.inf]], dtype),
        np.array([all_bits >> mantissa << mantissa, all_bits], integers_of(dtype)),
    )


def room(groups: int, width: int, dtype: np.dtype[Any]) -> Room:
    floats = np.zeros((3, groups, width), dtype)
    return floats, floats.view(integers_of(dtype)), np.ones(groups, dtype), np.ones(groups), np.zeros(groups)


def integers_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"i{dtype.itemsize}")


def _kind(format: Format) -> int:
    return WHOLE if isinstance(format, Whole) else FLOAT8 if isinstance(format, Float8) else LEVELS


def _mantissa_bits(format: Format) -> int:
    """A float8's magic number is for values in [1, 2); it grows with their power of two."""
    return format.mantissa_bits if isinstance(format, Float8) else 0


@compiled
def leave_residuals(number: int, count: int, grids: Grids, room: Room) -> None:
    """v − q for the first `count` groups, in the format with that number."""
    kinds, constants, levels, masks = grids
    floats, bits, peaks, _, _ = room
    limit, magic = constants[LIMIT, number], constants[MAGIC, number]
    values, residuals = floats[VALUES], floats[RESIDUALS]
    if kinds[number] == WHOLE:
        _round_whole(values, peaks, count, limit, magic, residuals)
    elif kinds[number] == FLOAT8:
        _scale(values, peaks, count, limit, residuals)
        _keep_bits(bits[RESIDUALS], count, masks[EXPONENT], bits[SPARE])
        _round_float8(values, peaks, count, limit, magic, constants[SMALLEST, number], floats[SPARE], residuals)
    else:
        _round_levels(values, peaks, count, levels[0], levels[1], residuals)


@compiled
def _round_whole(values: Values, peaks: Values, count: int, limit: Any, magic: Any, out: Values) -> None:
    for group in range(count):
        inverse, step = limit / peaks[group], peaks[group] / limit
        for index in range(values.shape[1]):
            value = values[group, index]
            out[group, index] = value - ((value * inverse + magic) - magic) * step


@compiled
def _scale(values: Values, peaks: Values, count: int, limit: Any, out: Values) -> None:
    for group in range(count):
        inverse = limit / peaks[group]
        for index in range(values.shape[1]):
            out[group, index] = values[group, index] * inverse


@compiled
def _keep_bits(bits: Values, count: int, mask: Any, out: Values) -> None:
    for group in range(count):
        for index in range(bits.shape[1]):
            out[group, index] = bits[group, index] & mask


@compiled
def _round_float8(
    values: Values, peaks: Values, count: int, limit: Any, magic: Any, smallest: Any, powers: Values, out: Values
) -> None:
    """`out` holds the scaled values, and `powers` the powers of two below them."""
    for group in range(count):
        step = peaks[group] / limit
        for index in range(values.shape[1]):
            scaled, below = out[group, index], powers[group, index]
            unit = (below if below > smallest else smallest) * magic
            out[group, index] = values[group, index] - ((scaled + unit) - unit) * step


@compiled
def _round_levels(values: Values, peaks: Values, count: int, levels: Values, middles: Values, out: Values) -> None:
    for group in range(count):
        step = peaks[group]
        inverse = levels[15] / step
        for index in range(values.shape[1]):
            value = values[group, index]
            scaled = value * inverse
            nearest = levels[0]
            # A chain of selections: the constant bound lets it be unrolled, and then vectorised.
            for level in range(15):
                above = levels[level + 1]
                nearest = above if scaled > middles[level] else nearest
            out[group, index] = value - nearest * step


@compiled
def leave_peaks(bits: Values, count: int, mask: Any, out: Values) -> None:
    """The pattern of each group's largest magnitude: a maximum of integers becomes vector instructions, that of floats,
    which might be NaN, does not."""
    for group in range(count):
        largest = bits[group, 0] & mask
        for index in range(bits.shape[1]):
            magnitude = bits[group, index] & mask
            largest = magnitude if magnitude > largest else largest
        out[group, 0] = largest


@compiled_sums
def leave_squares(values: Values, count: int, out: NDArray[np.float64]) -> None:
    """Σv² of each group."""
    for group in range(count):
        total = 0.0
        for index in range(values.shape[1]):
            value = np.float64(values[group, index])
            total += value * value
        out[group] = total


@compiled_sums
def weighted_sum_of_squares(values: Values, weights: NDArray[np.float64]) -> float:
    total = 0.0
    for index in range(values.size):
        total += values[index] * values[index] * weights[index]
    return total


# Groups that are worked on at a time: they, their residuals and room for as many again stay in the cache.
BATCH = 16
ROWS, GROUPS = 0, 1

Floats = NDArray[np.float64]


class Errors:
    """Adds up over the blocks of a matrix, which are C-contiguous, of one type and finite. `rows` and `groups` have
    Σ(v − q)² and max |v − q| per format, in the order of `FORMATS`; `signal` is Σv²."""

    def __init__(self, columns: int) -> None:
        # A row that is one group has the same errors with either scale.
        self._errors = np.zeros((1 if columns <= GROUP else 2, 2, len(FORMATS)))
        self.rows, self.groups = self._errors[0], self._errors[-1]
        self.signal = 0.0

    def add(self, block: Values) -> None:
        if not block.size:
            return
        width = min(GROUP, block.shape[1])
        kind = integers_of(block.dtype)
        raw, peaks = np.zeros((BATCH, width), block.dtype), np.empty((2, BATCH), block.dtype)
        patterns, kept = (block.view(kind), raw.view(kind)), room(BATCH, width, block.dtype)
        reach, constants = exponent_reach(block.dtype), grids(block.dtype)
        self.signal += _measure_block(block, patterns, reach, constants, raw, peaks, kept, self._errors)


def weighted_errors(values: Floats, weights: Floats, peak: float) -> Floats:
    """Σ(v − q)² and max |v − q| per format, all values with one scale and each standing for `weights` of them; `peak`,
    the largest magnitude, is between ½ and 1."""
    errors, kept = no_errors(), room(1, values.size, values.dtype)
    floats, _, peaks, _, _ = kept
    floats[VALUES, 0], peaks[0] = values, peak
    _measure_weighted(weights, grids(values.dtype), kept, errors)
    return errors


def no_errors() -> Floats:
    return np.zeros((2, len(FORMATS)))


@entry
def _measure_block(
    block: Values,
    patterns: tuple[Values, Values],
    reach: int,
    grids: Grids,
    raw: Values,
    peaks: Values,
    room: Room,
    errors: Floats,
) -> float:
    """Returns Σv². Groups of one or several rows are gathered until the batch is full; rows of zeros are left out.
    Kernels are inlined where they are called: each at one place, or compiling takes as many times as long."""
    bits, raw_bits = patterns
    signal, count = 0.0, 0
    rows, columns = block.shape
    for row in range(rows):
        row_peak = _peak(bits[row : row + 1], grids, room)
        for start in range(0, columns, GROUP):
            stop = min(start + GROUP, columns)
            if row_peak > 0:
                raw[count, : stop - start] = block[row, start:stop]
                raw[count, stop - start :] = 0
                peaks[ROWS, count] = row_peak
                count += 1
            if count == BATCH or (row == rows - 1 and stop == columns):
                leave_peaks(raw_bits, count, grids[3][MAGNITUDE], room[1][SPARE])
                peaks[GROUPS, :count] = room[0][SPARE, :count, 0]
                signal += _measure_batch(count, reach, grids, raw, peaks, room, errors)
                count = 0
    return signal


@compiled
def _measure_batch(
    count: int, reach: int, grids: Grids, raw: Values, peaks: Values, room: Room, errors: Floats
) -> float:
    floats, bits, _, units, squares = room
    signal = 0.0
    for grain in range(len(errors)):
        signal = _normalize(count, reach, raw, peaks[grain], room)
        for number in range(grids[0].size):
            leave_residuals(number, count, grids, room)
            leave_squares(floats[RESIDUALS], count, squares)
            leave_peaks(bits[RESIDUALS], count, grids[3][MAGNITUDE], bits[SPARE])
            for group in range(count):
                unit = units[group]
                errors[grain, 0, number] += squares[group] * unit * unit
                largest = np.float64(floats[SPARE, group, 0]) * unit
                errors[grain, 1, number] = max(errors[grain, 1, number], largest)
    return signal


@compiled
def _normalize(count: int, reach: int, raw: Values, peaks: Values, room: Room) -> float:
    """As `formats.normalized`; zeros alone are given a peak. Returns Σv²."""
    floats, _, normalized, units, squares = room
    for group in range(count):
        exponent = min(max(math.frexp(peaks[group])[1], -reach), reach)
        units[group] = math.ldexp(1.0, exponent)
        normalized[group] = math.ldexp(1.0, -exponent)
        power = normalized[group]
        normalized[group] = peaks[group] * power if peaks[group] > 0 else power
        for index in range(raw.shape[1]):
            floats[VALUES, group, index] = raw[group, index] * power
    leave_squares(floats[VALUES], count, squares)
    signal = 0.0
    for group in range(count):
        signal += squares[group] * units[group] * units[group]
    return signal


@compiled
def _peak(bits: Values, grids: Grids, room: Room) -> Any:
    """The largest magnitude; its pattern becomes a number again in the spare room."""
    floats, spare, _, _, _ = room
    leave_peaks(bits, 1, grids[3][MAGNITUDE], spare[SPARE])
    return floats[SPARE, 0, 0]


@entry
def _measure_weighted(weights: Floats, grids: Grids, room: Room, errors: Floats) -> None:
    floats, bits, _, _, _ = room
    for number in range(grids[0].size):
        leave_residuals(number, 1, grids, room)
        errors[0, number] = weighted_sum_of_squares(floats[RESIDUALS, 0], weights)
        errors[1, number] = _peak(bits[RESIDUALS], grids, room)
