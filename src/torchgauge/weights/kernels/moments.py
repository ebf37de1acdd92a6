"""Values that are not finite are counted and left out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.kernels.jit import compiled, compiled_sums
from torchgauge.weights.tally import combine_powers

# Where the counts of special values are kept.
NAN, INF, ZEROS = range(3)


@compiled
def keep_finite(block: NDArray[Any], special: NDArray[np.int64], scratch: NDArray[Any]) -> NDArray[Any]:
    """The finite values, moved together; the others are counted."""
    found = 0
    for index in range(block.size):
        value = block[index]
        if np.isfinite(value):
            scratch[found] = value
            found += 1
        elif np.isnan(value):
            special[NAN] += 1
        else:
            special[INF] += 1
    return scratch[:found]


F64 = NDArray[np.float64]
Values = NDArray[Any]
Sums = tuple[float, float, float, float, float]

N, MEAN, M2, M3, M4, L1, MINIMUM, MAXIMUM, EXPONENT = range(9)

combine_blocks = compiled(combine_powers)


def fresh_state() -> F64:
    state = np.zeros(9)
    state[MINIMUM], state[MAXIMUM] = np.inf, -np.inf
    return state


@compiled_sums
def sums_around(values: Values, centre: float) -> Sums:
    """Of the first to fourth powers of the distances to `centre`, and of the magnitudes."""
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
    """Take in finite values in the state's unit, whose extremes (in no unit) are known."""
    add_sums(state, values, state[MEAN], sums_around(values, state[MEAN]), minimum, maximum)


@compiled
def add_sums(state: F64, values: Values, guess: float, sums: Sums, minimum: float, maximum: float) -> None:
    """As `add_block`, where the sums around a guessed mean are there already; NaN if they are not."""
    n = float(values.size)
    if minimum == maximum:
        # Equal values have no spread at all, however their sum is rounded.
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
    """mean, m2, m3, m4, l1 from the sums around a guess. If it is within two standard deviations of the mean, that
    costs next to no precision; else the values are gone over again: around 0, then around the mean that this gives."""
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
    """What becomes too small for it is negligible beside what made the unit larger."""
    factor = 2.0 ** (state[EXPONENT] - exponent)
    state[EXPONENT] = exponent
    state[MEAN] *= factor
    state[L1] *= factor
    state[M2] *= factor * factor
    state[M3] *= factor * factor * factor
    state[M4] *= factor * factor * factor * factor
