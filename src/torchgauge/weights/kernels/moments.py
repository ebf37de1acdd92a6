"""Sums over a block in the first-level cache, and how blocks combine. NaN and ±inf are counted and left out.

The state of a pass is [n, mean, m2, m3, m4, l1, minimum, maximum, exponent] as float64; all but the extremes are in
units of 2**exponent.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.kernels.jit import compiled, compiled_sums
from torchgauge.weights.tally import combine_powers

# Indices into the counts of special values.
NAN, INF, ZEROS = range(3)


@compiled
def keep_finite(block: NDArray[Any], special: NDArray[np.int64], scratch: NDArray[Any]) -> NDArray[Any]:
    """The finite values, compacted into `scratch`; the others are counted."""
    size = 0
    for index in range(block.size):
        value = block[index]
        if np.isfinite(value):
            scratch[size] = value
            size += 1
        elif np.isnan(value):
            special[NAN] += 1
        else:
            special[INF] += 1
    return scratch[:size]


F64 = NDArray[np.float64]
Values = NDArray[Any]
Sums = tuple[float, float, float, float, float]

N, MEAN, M2, M3, M4, L1, MINIMUM, MAXIMUM, EXPONENT = range(9)

combine_blocks = compiled(combine_powers)


def new_state() -> F64:
    state = np.zeros(9)
    state[MINIMUM], state[MAXIMUM] = np.inf, -np.inf
    return state


@compiled_sums
def sums_around(values: Values, centre: float) -> Sums:
    """Sums of the first to fourth powers of the distances to `centre`, and of the magnitudes."""
    first, second, third, fourth, l1 = 0.0, 0.0, 0.0, 0.0, 0.0
    for index in range(values.size):
        value = np.float64(values[index])
        distance = value - centre
        square = distance * distance
        first += distance
        second += square
        third += square * distance
        fourth += square * square
        l1 += abs(value)
    return first, second, third, fourth, l1


@compiled
def add_block(state: F64, values: Values, minimum: float, maximum: float) -> None:
    """Add finite values in the state's unit; the extremes are unscaled."""
    add_sums(state, values, state[MEAN], sums_around(values, state[MEAN]), minimum, maximum)


@compiled
def add_sums(state: F64, values: Values, guess: float, sums: Sums, minimum: float, maximum: float) -> None:
    """Like `add_block`, with sums around a guessed mean; NaN if they are not known."""
    n = float(values.size)
    if minimum == maximum:
        # Equal values have no spread, however their sum is rounded.
        mean, m2, m3, m4 = float(values[0]), 0.0, 0.0, 0.0
        l1 = n * abs(mean)
    else:
        mean, m2, m3, m4, l1 = _central(values, guess, sums)
    if state[N] > 0.0:
        mean, m2, m3, m4 = combine_blocks(state[N], state[MEAN], state[M2], state[M3], state[M4], n, mean, m2, m3, m4)
    state[N] += n
    state[MEAN], state[M2], state[M3], state[M4] = mean, m2, m3, m4
    state[L1] += l1
    state[MINIMUM] = minimum if minimum < state[MINIMUM] else state[MINIMUM]
    state[MAXIMUM] = maximum if maximum > state[MAXIMUM] else state[MAXIMUM]


@compiled
def _central(values: Values, guess: float, sums: Sums) -> Sums:
    """mean, m2, m3, m4, l1 from sums around a guess. A guess within two standard deviations of the mean costs hardly
    any precision; otherwise the values are summed again, around 0 and then around the resulting mean."""
    n = float(values.size)
    for attempt in range(2):
        step = sums[0] / n
        if n * step * step <= 4.0 * (sums[1] - step * sums[0]):
            break
        guess = 0.0 if attempt == 0 else step
        sums = sums_around(values, guess)
    first, second, third, fourth, l1 = sums
    step = first / n
    m2 = second - step * first
    m3 = third - 3.0 * step * second + 2.0 * n * step * step * step
    m4 = fourth - 4.0 * step * third + 6.0 * step * step * second - 3.0 * n * step * step * step * step
    return guess + step, m2, m3, m4, l1


@compiled
def in_larger_unit(state: F64, exponent: float) -> None:
    """Rescale the state; values that underflow are negligible compared with those that need the larger unit."""
    factor = 2.0 ** (state[EXPONENT] - exponent)
    state[EXPONENT] = exponent
    state[MEAN] *= factor
    state[L1] *= factor
    state[M2] *= factor * factor
    state[M3] *= factor * factor * factor
    state[M4] *= factor * factor * factor * factor
