"""Quantization errors in all formats, with one scale per tensor, per row and per group of a row.

The arithmetic of `number_formats` in loops that become vector instructions. Adding 1.5 · 2**m and subtracting it again
rounds to a multiple of the unit in the last place of the sum, ties to even. Fast-math would optimise that away, and
numba passes it on to callees unless they refuse it, as `compiled` does.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.kernels.jit import compiled, compiled_sums, entry
from torchgauge.weights.number_formats import FORMATS, GROUP_SIZE, NF4, Float8Format, IntegerFormat, max_normal_exponent
from torchgauge.weights.passes import QuantizationErrors, no_errors

Values = NDArray[Any]

INTEGER, FLOAT8, LEVELS = 0, 1, 2


# Plain tuples: with a NamedTuple, numba's cache refers to the class by name and fails when that changes.
#
# Constants of the formats, in the type of the values: kinds; limits, magic numbers and smallest normal numbers; the
# levels of nf4 and their midpoints; masks of exponent and magnitude.
Grids = tuple[NDArray[np.int64], Values, Values, Values]
# Groups of values, one per row and padded with zeros, which are zero in every format: loops of constant length become
# vector instructions. Values, residuals and spare space; the bit patterns of the same memory; the magnitude of each
# group that is scaled to a format's limit; the unit of each group, in which values are about 1 at most; space for one
# sum each.
Buffers = tuple[Values, Values, Values, NDArray[np.float64], NDArray[np.float64]]
VALUES, RESIDUALS, SPARE = 0, 1, 2
LIMIT, MAGIC, SMALLEST = 0, 1, 2
EXPONENT, MAGNITUDE = 0, 1


@cache
def grids(dtype: np.dtype[Any]) -> Grids:
    mantissa, all_bits = np.finfo(dtype).nmant, np.iinfo(integers_of(dtype)).max
    limits = [format.limit for format in FORMATS]
    # The magic number of a float8 is for values in [1, 2); it scales with their power of two.
    magic = [
        1.5 * 2.0 ** (mantissa - (format.mantissa_bits if isinstance(format, Float8Format) else 0))
        for format in FORMATS
    ]
    smallest = [2.0**format.min_exponent if isinstance(format, Float8Format) else 0.0 for format in FORMATS]
    return (
        np.array(
            [
                INTEGER if isinstance(format, IntegerFormat) else FLOAT8 if isinstance(format, Float8Format) else LEVELS
                for format in FORMATS
            ]
        ),
        np.array([limits, magic, smallest], dtype),
        np.array([NF4.levels, [*NF4.middles(dtype), np.inf]], dtype),
        np.array([all_bits >> mantissa << mantissa, all_bits], integers_of(dtype)),
    )


def new_buffers(groups: int, width: int, dtype: np.dtype[Any]) -> Buffers:
    floats = np.zeros((3, groups, width), dtype)
    return floats, floats.view(integers_of(dtype)), np.ones(groups, dtype), np.ones(groups), np.zeros(groups)


def integers_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"i{dtype.itemsize}")


@compiled
def write_residuals(number: int, count: int, grids: Grids, buffers: Buffers) -> None:
    """v − q for the first `count` groups, in the format with that number."""
    kinds, constants, levels, masks = grids
    floats, bits, peaks, _, _ = buffers
    limit, magic = constants[LIMIT, number], constants[MAGIC, number]
    values, residuals = floats[VALUES], floats[RESIDUALS]
    if kinds[number] == INTEGER:
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
            # The constant bound lets the compiler unroll this chain of selections and vectorise it.
            for level in range(15):
                above = levels[level + 1]
                nearest = above if scaled > middles[level] else nearest
            out[group, index] = value - nearest * step


@compiled
def write_peaks(bits: Values, count: int, mask: Any, out: Values) -> None:
    """The bit pattern of each group's largest magnitude: a maximum of integers becomes vector instructions, one of
    floats, which might be NaN, does not."""
    for group in range(count):
        largest = bits[group, 0] & mask
        for index in range(bits.shape[1]):
            magnitude = bits[group, index] & mask
            largest = magnitude if magnitude > largest else largest
        out[group, 0] = largest


@compiled_sums
def write_square_sums(values: Values, count: int, out: NDArray[np.float64]) -> None:
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


# Groups per batch: their values, residuals and spare space stay in the cache.
BATCH = 16
ROWS, GROUPS = 0, 1

Floats = NDArray[np.float64]


class CompiledErrors(QuantizationErrors):
    def add(self, block: Values) -> None:
        if not block.size:
            return
        width = min(GROUP_SIZE, block.shape[1])
        kind = integers_of(block.dtype)
        raw, peaks = np.zeros((BATCH, width), block.dtype), np.empty((2, BATCH), block.dtype)
        patterns, kept = (block.view(kind), raw.view(kind)), new_buffers(BATCH, width, block.dtype)
        reach, constants = max_normal_exponent(block.dtype), grids(block.dtype)
        self.signal += _measure_block(block, patterns, reach, constants, raw, peaks, kept, self._errors)


def weighted_errors(values: Floats, weights: Floats, peak: float) -> Floats:
    """Σ(v − q)² and max |v − q| per format with one scale for all values, each with a weight; `peak`, the largest
    magnitude, is between ½ and 1."""
    errors, kept = no_errors(), new_buffers(1, values.size, values.dtype)
    floats, _, peaks, _, _ = kept
    floats[VALUES, 0], peaks[0] = values, peak
    _measure_weighted(weights, grids(values.dtype), kept, errors)
    return errors


@entry
def _measure_block(
    block: Values,
    patterns: tuple[Values, Values],
    reach: int,
    grids: Grids,
    raw: Values,
    peaks: Values,
    buffers: Buffers,
    errors: Floats,
) -> float:
    """Returns Σv². Collects groups of one or several rows until a batch is full; rows of zeros are left out. Kernels
    are inlined, so each is called from one place only: otherwise compilation takes several times as long."""
    bits, raw_bits = patterns
    signal, count = 0.0, 0
    rows, columns = block.shape
    for row in range(rows):
        row_peak = _peak(bits[row : row + 1], grids, buffers)
        for start in range(0, columns, GROUP_SIZE):
            stop = min(start + GROUP_SIZE, columns)
            if row_peak > 0:
                raw[count, : stop - start] = block[row, start:stop]
                raw[count, stop - start :] = 0
                peaks[ROWS, count] = row_peak
                count += 1
            if count == BATCH or (row == rows - 1 and stop == columns):
                write_peaks(raw_bits, count, grids[3][MAGNITUDE], buffers[1][SPARE])
                peaks[GROUPS, :count] = buffers[0][SPARE, :count, 0]
                signal += _measure_batch(count, reach, grids, raw, peaks, buffers, errors)
                count = 0
    return signal


@compiled
def _measure_batch(
    count: int, reach: int, grids: Grids, raw: Values, peaks: Values, buffers: Buffers, errors: Floats
) -> float:
    floats, bits, _, units, squares = buffers
    signal = 0.0
    for grain in range(len(errors)):
        signal = _normalize(count, reach, raw, peaks[grain], buffers)
        for number in range(grids[0].size):
            write_residuals(number, count, grids, buffers)
            write_square_sums(floats[RESIDUALS], count, squares)
            write_peaks(bits[RESIDUALS], count, grids[3][MAGNITUDE], bits[SPARE])
            for group in range(count):
                unit = units[group]
                errors[grain, 0, number] += squares[group] * unit * unit
                largest = np.float64(floats[SPARE, group, 0]) * unit
                errors[grain, 1, number] = max(errors[grain, 1, number], largest)
    return signal


@compiled
def _normalize(count: int, reach: int, raw: Values, peaks: Values, buffers: Buffers) -> float:
    """Like `number_formats.normalized`; a group of zeros gets a nonzero peak. Returns Σv²."""
    floats, _, normalized, units, squares = buffers
    for group in range(count):
        exponent = min(max(math.frexp(peaks[group])[1], -reach), reach)
        units[group] = math.ldexp(1.0, exponent)
        normalized[group] = math.ldexp(1.0, -exponent)
        power = normalized[group]
        normalized[group] = peaks[group] * power if peaks[group] > 0 else power
        for index in range(raw.shape[1]):
            floats[VALUES, group, index] = raw[group, index] * power
    write_square_sums(floats[VALUES], count, squares)
    signal = 0.0
    for group in range(count):
        signal += squares[group] * units[group] * units[group]
    return signal


@compiled
def _peak(bits: Values, grids: Grids, buffers: Buffers) -> Any:
    """The largest magnitude; its bit pattern is read as a number from the spare space."""
    floats, spare, _, _, _ = buffers
    write_peaks(bits, 1, grids[3][MAGNITUDE], spare[SPARE])
    return floats[SPARE, 0, 0]


@entry
def _measure_weighted(weights: Floats, grids: Grids, buffers: Buffers, errors: Floats) -> None:
    floats, bits, _, _, _ = buffers
    for number in range(grids[0].size):
        write_residuals(number, 1, grids, buffers)
        errors[0, number] = weighted_sum_of_squares(floats[RESIDUALS, 0], weights)
        errors[1, number] = _peak(bits[RESIDUALS], grids, buffers)
