"""Figures of repeated measurements of one thing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import TypeVar

T = TypeVar("T")

# The 97.5 % point of the normal distribution: 95 % lie within.
_Z95 = 1.959963984540054


def median_interval(seconds: Sequence[float]) -> tuple[float, float]:
    """The 95 % confidence interval of the median, from order statistics: no assumption on the distribution.

    The ranks are those of the binomial distribution's normal approximation (Conover, Practical Nonparametric
    Statistics, 3.2); with fewer than six runs it is the whole range, and promises less.
    """
    ordered = sorted(seconds)
    count = len(ordered)
    reach = _Z95 * math.sqrt(count) / 2
    low = max(0, math.floor(count / 2 - reach) - 1)
    high = min(count - 1, math.ceil(count / 2 + reach))
    return ordered[low], ordered[high]


def relative_half_width(seconds: Sequence[float]) -> float:
    """Half of the median's confidence interval, as a share of the median."""
    low, high = median_interval(seconds)
    middle = median(seconds)
    return (high - low) / 2 / middle if middle > 0 else 0.0


def percentile(seconds: Sequence[float], share: float) -> float:
    """Linear between the two closest ranks."""
    ordered = sorted(seconds)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def middle_half(runs: Sequence[T], total: Callable[[T], float]) -> list[T]:
    """The runs whose totals are neither among the fastest nor the slowest quarter: their parts, averaged, add up to a
    total near the median, which medians of the parts would not."""
    ordered = sorted(runs, key=total)
    cut = len(ordered) // 4
    return ordered[cut : len(ordered) - cut]


def nearest(runs: Sequence[T], total: Callable[[T], float], target: float, share: float = 0.5) -> list[T]:
    """The share of runs whose totals are nearest to the target: what they are made of is what a run of that length
    is."""
    return sorted(runs, key=lambda run: abs(total(run) - target))[: math.ceil(share * len(runs))]
