"""The finite values of a tally as ranges with counts: in ascending order (`Bins`), or by magnitude (`Ranges`).

Values within a range are assumed to be evenly spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.symbols import is_exact, value_bounds
from torchgauge.weights.tally import Counts, Tally

Floats = NDArray[np.float64]

# An eighth of int8's step of about absmax/128. Wider ranges are split, because the position of values in them matters.
_MAX_RANGE_WIDTH = 2.0**-10
_RANGE_PARTS = 8


@dataclass(frozen=True, slots=True)
class Bins:
    """Ascending ranges that do not overlap; `lower` equals `upper` where the value is known. `ends` are cumulative."""

    lower: Floats
    upper: Floats
    counts: Counts
    ends: Counts

    @property
    def total(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def quantiles(self, shares: Sequence[float]) -> list[float]:
        """By numpy's "linear" method: interpolated between the two nearest values."""
        places = [share * (self.total - 1) for share in shares]
        ranks = np.array([(floor(place), min(floor(place) + 1, self.total - 1)) for place in places])
        at = np.searchsorted(self.ends, ranks, side="right")
        lower, upper, counts = self.lower[at], self.upper[at], self.counts[at]
        share = (ranks - (self.ends[at] - counts) + 0.5) / counts
        values = np.where(lower == upper, lower, lower * (1 - share) + upper * share)
        # The extremes are known, whatever the width of their ranges.
        values = np.where(ranks == 0, self.lower[0], np.where(ranks == self.total - 1, self.upper[-1], values))
        return [
            low * (1 - (place - floor(place))) + high * (place - floor(place)) if high > low else low
            for place, (low, high) in zip(places, values.tolist(), strict=True)
        ]

    def count_below(self, bounds: Floats) -> Floats:
        """The number of values less than each bound."""
        whole = np.searchsorted(self.upper, bounds, side="left")
        below = np.concatenate(([0], self.ends))[whole].astype(np.float64)
        partly = np.flatnonzero((whole < len(self.lower)) & (bounds > np.append(self.lower, np.inf)[whole]))
        here = whole[partly]
        # Halved, because a range may span all of float64.
        part = (bounds[partly] / 2 - self.lower[here] / 2) / (self.upper[here] / 2 - self.lower[here] / 2)
        below[partly] += part * self.counts[here]
        return below


def bins_of(tally: Tally) -> Bins:
    lower, upper = value_bounds(tally)
    order = np.argsort(lower, kind="stable")
    # NaN marks codes without a finite value; it sorts to the end.
    order = order[: len(order) - int(np.isnan(lower).sum())]
    lower, upper, counts = lower[order], upper[order], tally.counts[order]
    if tally.zeros and not is_exact(tally.symbol):
        # Zeros get a separate range between those that end and start at 0, which share the remaining counts.
        first, last = np.searchsorted(upper, 0.0, side="left"), np.searchsorted(lower, 0.0, side="right")
        here, is_wide = slice(first, last), upper[first:last] > lower[first:last]
        nonzero = counts[here].sum() - tally.zeros
        negative_share = counts[here][is_wide & (lower[here] < 0)].sum() / max(counts[here][is_wide].sum(), 1)
        negative = int(np.rint(nonzero * negative_share))
        lower, upper, counts = (
            np.concatenate((lower[:first], [lower[first], 0.0, 0.0], lower[last:])),
            np.concatenate((upper[:first], [0.0, 0.0, upper[last - 1]], upper[last:])),
            np.concatenate((counts[:first], [negative, tally.zeros, nonzero - negative], counts[last:])),
        )
    return Bins(lower, upper, counts, np.cumsum(counts))


def bins_of_values(values: Floats) -> Bins:
    finite = np.sort(values[np.isfinite(values)])
    counts = np.ones(len(finite), dtype=np.int64)
    return Bins(finite, finite, counts, np.cumsum(counts))


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges from `lower` to `upper` in units of 2**exponent, so that squares neither overflow nor vanish; `peak` is
    the largest magnitude, about 1. `lower` equals `upper` where the value is known."""

    lower: Floats
    upper: Floats
    counts: Floats
    exponent: int
    peak: float

    def mean_squares(self) -> Floats:
        return np.asarray((self.lower**2 + self.lower * self.upper + self.upper**2) / 3)

    def points(self) -> tuple[Floats, Floats]:
        """Representative values and their weights: the middle of each range, or of each part of a wide one."""
        is_wide = self.upper - self.lower > _MAX_RANGE_WIDTH * self.peak
        if not is_wide.any():
            return (self.lower + self.upper) / 2, self.counts
        lower, width = self.lower[is_wide, None], (self.upper - self.lower)[is_wide, None]
        parts = lower + width * ((np.arange(_RANGE_PARTS) + 0.5) / _RANGE_PARTS)
        middles = (self.lower + self.upper)[~is_wide] / 2
        weights = [self.counts[~is_wide], np.repeat(self.counts[is_wide] / _RANGE_PARTS, _RANGE_PARTS)]
        return np.concatenate([middles, parts.ravel()]), np.concatenate(weights)


def ranges_of(tally: Tally, *, exact_values: Floats | None = None) -> Ranges | None:
    """The ranges of the tally, or one per distinct value of `exact_values`; None without finite values."""
    if not tally.finite:
        return None
    if exact_values is None:
        lower, upper = value_bounds(tally)
        is_finite = ~np.isnan(lower)
        lower, upper, counts = lower[is_finite], upper[is_finite], tally.counts[is_finite].astype(np.float64)
        # Zeros leave the ranges that only touch 0 and get a separate range.
        missing = left = tally.zeros - counts[(lower == 0) & (upper == 0)].sum()
        if missing > 0:
            for index in np.flatnonzero((lower <= 0) & (upper >= 0) & (lower < upper)):
                taken = min(left, counts[index])
                counts[index] -= taken
                left -= taken
            lower, upper, counts = np.append(lower, 0.0), np.append(upper, 0.0), np.append(counts, missing - left)
    else:
        lower, distinct_counts = np.unique(exact_values[np.isfinite(exact_values)], return_counts=True)
        upper, counts = lower, distinct_counts.astype(np.float64)
    largest = max(abs(tally.minimum), abs(tally.maximum))
    exponent = int(np.frexp(largest)[1])
    peak = float(np.ldexp(largest, -exponent))
    return Ranges(np.ldexp(lower, -exponent), np.ldexp(upper, -exponent), counts, exponent, peak)
