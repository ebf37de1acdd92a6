"""Squared and largest quantization errors in all formats, with a scale for each row and for each group of a row."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.kernels.jit import compiled, entry
from torchgauge.weights.kernels.rounding import (
    MAGNITUDE,
    RESIDUALS,
    SPARE,
    VALUES,
    Grids,
    Room,
    Values,
    grids,
    integers_of,
    leave_peaks,
    leave_residuals,
    leave_squares,
    room,
    weighted_sum_of_squares,
)
from torchgauge.weights.potential.formats import FORMATS, GROUP, exponent_reach

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
