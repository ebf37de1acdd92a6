"""The finite values of a tally in their order: ranges of values with counts, and what follows from where values lie.

Within a range that holds more than one value they are taken as evenly spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.symbols import is_exact, value_bounds
from torchgauge.weights.tally import Tally

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Bins:
    """Ascending ranges that do not overlap; `lower` and `upper` are equal where the value is known."""

    lower: Floats
    upper: Floats
    counts: NDArray[np.int64]
    ends: NDArray[np.int64]

    @property
    def total(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def quantiles(self, shares: Sequence[float]) -> list[float]:
        """numpy's definition "linear": between the two values nearest to the place."""
        places = [share * (self.total - 1) for share in shares]
        ranks = np.array([(floor(place), min(floor(place) + 1, self.total - 1)) for place in places])
        values = self._values_at(ranks.reshape(-1)).reshape(-1, 2).tolist()
        return [
            low * (1 - (place - floor(place))) + high * (place - floor(place)) if high > low else low
            for place, (low, high) in zip(places, values, strict=True)
        ]

    def below(self, bounds: Floats) -> Floats:
        """How many values are less than each bound."""
        whole = np.searchsorted(self.upper, bounds, side="left")
        before = np.concatenate(([0], self.ends))[whole].astype(np.float64)
        partly = np.flatnonzero((whole < len(self.lower)) & (bounds > np.append(self.lower, np.inf)[whole]))
        here = whole[partly]
        # Halved, for ranges as wide as float64.
        part = (bounds[partly] / 2 - self.lower[here] / 2) / (self.upper[here] / 2 - self.lower[here] / 2)
        before[partly] += part * self.counts[here]
        return before

    def _values_at(self, ranks: NDArray[np.int64]) -> Floats:
        found = np.searchsorted(self.ends, ranks, side="right")
        lower, upper, counts = self.lower[found], self.upper[found], self.counts[found]
        share = (ranks - (self.ends[found] - counts) + 0.5) / counts
        values = np.where(lower == upper, lower, lower * (1 - share) + upper * share)
        # The extremes are known, whatever the width of their ranges.
        return np.where(ranks == 0, self.lower[0], np.where(ranks == self.total - 1, self.upper[-1], values))


def bins_of(tally: Tally) -> Bins:
    lower, upper = value_bounds(tally)
    order = np.argsort(lower, kind="stable")
    # NaN, where a code stands for no number, is sorted to the end.
    order = order[: len(order) - int(np.isnan(lower).sum())]
    lower, upper, counts = lower[order], upper[order], tally.counts[order]
    if tally.zeros and not is_exact(tally.symbol):
        lower, upper, counts = _split_zeros(lower, upper, counts, tally.zeros)
    return Bins(lower, upper, counts, np.cumsum(counts))


def _split_zeros(
    lower: Floats, upper: Floats, counts: NDArray[np.int64], zeros: int
) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """A range of zeros alone between those that end and begin with 0, which keep the rest in proportion."""
    first, last = np.searchsorted(upper, 0.0, side="left"), np.searchsorted(lower, 0.0, side="right")
    here, wide = slice(first, last), upper[first:last] > lower[first:last]
    others = counts[here].sum() - zeros
    negative = int(np.rint(others * (counts[here][wide & (lower[here] < 0)].sum() / max(counts[here][wide].sum(), 1))))
    return (
        np.concatenate((lower[:first], [lower[first], 0.0, 0.0], lower[last:])),
        np.concatenate((upper[:first], [0.0, 0.0, upper[last - 1]], upper[last:])),
        np.concatenate((counts[:first], [negative, zeros, others - negative], counts[last:])),
    )


def bins_of_values(values: Floats) -> Bins:
    finite = np.sort(values[np.isfinite(values)])
    counts = np.ones(len(finite), dtype=np.int64)
    return Bins(finite, finite, counts, np.cumsum(counts))


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
