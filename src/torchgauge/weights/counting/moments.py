"""Mean and central powers of values, and how those of two sets combine.

After P. Pébay, "Formulas for robust, one-pass parallel computation of covariances and arbitrary-order statistical
moments", Sandia report SAND2008-6212, 2008: equations 2.1, 3.1 for the orders 2 to 4.
"""

from __future__ import annotations

from math import ldexp
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Moments(NamedTuple):
    """Of `n` values in units of 2**exponent: mean, sums of powers of the distances to it, sum of magnitudes."""

    n: int
    mean: float = 0.0
    m2: float = 0.0
    m3: float = 0.0
    m4: float = 0.0
    l1: float = 0.0
    exponent: int = 0


def combine(a: Moments, b: Moments) -> Moments:
    if not a.n or not b.n:
        return a if a.n else b
    a, b = _in_one_unit(a, b)
    powers = combine_powers(float(a.n), a.mean, a.m2, a.m3, a.m4, float(b.n), b.mean, b.m2, b.m3, b.m4)
    return Moments(a.n + b.n, *powers, a.l1 + b.l1, a.exponent)


def combine_powers(
    n: float, mean: float, m2: float, m3: float, m4: float,
    other_n: float, other_mean: float, other_m2: float, other_m3: float, other_m4: float,
) -> tuple[float, float, float, float]:  # fmt: skip
    """Mean, m2, m3, m4 of both together. Plain arithmetic: the kernels compile it as it is."""
    both = n * other_n
    delta = other_mean - mean
    step = delta / (n + other_n)
    fourth = both * (n * n - both + other_n * other_n) * delta * step * step * step
    fourth += 6.0 * step * step * (n * n * other_m2 + other_n * other_n * m2)
    fourth += 4.0 * step * (n * other_m3 - other_n * m3)
    third = both * (n - other_n) * delta * step * step + 3.0 * step * (n * other_m2 - other_n * m2)
    return (
        mean + other_n * step,
        m2 + other_m2 + both * delta * step,
        m3 + other_m3 + third,
        m4 + other_m4 + fourth,
    )


def of_counts(values: NDArray[np.float64], counts: NDArray[np.int64]) -> Moments:
    """Of values that occur `counts` times. numpy adds pairwise: what is lost is of the order of one rounding."""
    n = int(counts.sum())
    if not n:
        return Moments(0)
    weights = counts.astype(np.float64)
    mean = float((values * weights).sum()) / n
    distance = values - mean
    # The mean is rounded; its error would show in the powers of values far from 0.
    rest = float((distance * weights).sum()) / n
    distance -= rest
    square = distance * distance
    weighted = square * weights
    return Moments(
        n,
        mean + rest,
        float(weighted.sum()),
        float((weighted * distance).sum()),
        float((weighted * square).sum()),
        float((np.abs(values) * weights).sum()),
    )


def _in_one_unit(a: Moments, b: Moments) -> tuple[Moments, Moments]:
    """Both in the larger unit; zeros alone have none."""
    if a.exponent == b.exponent:
        return a, b
    exponent = max((moments.exponent for moments in (a, b) if moments.l1), default=0)
    return _in_unit(a, exponent), _in_unit(b, exponent)


def _in_unit(moments: Moments, exponent: int) -> Moments:
    if moments.exponent == exponent or not moments.l1:
        return moments._replace(exponent=exponent)
    by = moments.exponent - exponent
    n, mean, m2, m3, m4, l1, _ = moments
    return Moments(n, ldexp(mean, by), ldexp(m2, 2 * by), ldexp(m3, 3 * by), ldexp(m4, 4 * by), ldexp(l1, by), exponent)
