"""The finite values of a tally as ranges with their counts, in a unit in which the largest magnitude is about 1."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.counting.symbols import value_bounds
from torchgauge.weights.counting.tally import Tally

Floats = NDArray[np.float64]

# An eighth of int8's step, about absmax/128: where wider ranges end in it matters, and they are looked at in parts.
_WIDE = 2.0**-10
_PARTS = 8


@dataclass(frozen=True, slots=True)
class Ranges:
    """Values from `lower` to `upper`, evenly spread as far as is known; equal where a symbol is a value. All are in
    units of 2**exponent, so that squares neither overflow nor vanish, and `peak` is the largest magnitude."""

    lower: Floats
    upper: Floats
    counts: Floats
    exponent: int
    peak: float

    def mean_squares(self) -> Floats:
        return np.asarray((self.lower**2 + self.lower * self.upper + self.upper**2) / 3)

    def points(self) -> tuple[Floats, Floats]:
        """Values that stand for the ranges, and how many each stands for: the middle, or those of equal parts of a
        wide range."""
        wide = self.upper - self.lower > _WIDE * self.peak
        if not wide.any():
            return (self.lower + self.upper) / 2, self.counts
        lower, width = self.lower[wide, None], (self.upper - self.lower)[wide, None]
        parts = lower + width * ((np.arange(_PARTS) + 0.5) / _PARTS)
        middles = (self.lower + self.upper)[~wide] / 2
        weights = [self.counts[~wide], np.repeat(self.counts[wide] / _PARTS, _PARTS)]
        return np.concatenate([middles, parts.ravel()]), np.concatenate(weights)


def ranges_of(tally: Tally, *, exact_values: Floats | None = None) -> Ranges | None:
    """None where no value is finite. Given the values themselves, each is a range of its own."""
    if not tally.finite:
        return None
    bounds = _counted(tally) if exact_values is None else _exact(exact_values)
    largest = max(abs(tally.minimum), abs(tally.maximum))
    exponent = int(np.frexp(largest)[1])
    lower, upper = (np.ldexp(bound, -exponent) for bound in bounds[:2])
    return Ranges(lower, upper, bounds[2], exponent, float(np.ldexp(largest, -exponent)))


def _counted(tally: Tally) -> tuple[Floats, Floats, Floats]:
    lower, upper = value_bounds(tally)
    finite = ~np.isnan(lower)
    return _zeros_apart(lower[finite], upper[finite], tally.counts[finite].astype(np.float64), tally.zeros)


def _exact(values: Floats) -> tuple[Floats, Floats, Floats]:
    distinct, counts = np.unique(values[np.isfinite(values)], return_counts=True)
    return distinct, distinct, counts.astype(np.float64)


def _zeros_apart(lower: Floats, upper: Floats, counts: Floats, zeros: int) -> tuple[Floats, Floats, Floats]:
    """Zeros leave the ranges that only touch 0."""
    missing = left = zeros - counts[(lower == 0) & (upper == 0)].sum()
    if missing <= 0:
        return lower, upper, counts
    counts = counts.copy()
    for index in np.flatnonzero((lower <= 0) & (upper >= 0) & (lower < upper)):
        taken = min(left, counts[index])
        counts[index] -= taken
        left -= taken
    return np.append(lower, 0.0), np.append(upper, 0.0), np.append(counts, missing - left)
