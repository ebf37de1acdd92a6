"""Outliers among repeated layers: same place in another block, same shape, but a different scale."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any, NamedTuple

from torchgauge.facts.figures import Members
from torchgauge.facts.siblings import by_pattern
from torchgauge.facts.weights import value_figures

FIGURES = ("std", "abs_max", "mean", "kurtosis", "sparsity", "spectral_norm", "stable_rank", "entropy_bits")
MIN_SIBLINGS = 5
MIN_SCORE = 6.0
# 1 / Φ⁻¹(3/4): for normal data, the standard deviation divided by the median absolute deviation.
_STD_PER_MAD = 1.4826
# The smallest difference that matters: absolute for figures on a fixed scale, else relative to the median.
_MIN_RELATIVE_DIFFERENCE = 0.5
_MIN_DIFFERENCE = {"kurtosis": 1.0, "sparsity": 0.05, "entropy_bits": 0.5}


class Outlier(NamedTuple):
    """`score` is the distance to the siblings' median in robust standard deviations; None if all others agree."""

    name: str
    figure: str
    value: float
    median: float
    score: float | None
    siblings: str
    of: int


def find_outliers(rows: Mapping[str, Members]) -> list[dict[str, Any]]:
    """The outliers among rows by name, the most extreme first."""
    outliers = []
    for pattern, names in by_pattern(rows).items():
        groups: dict[tuple[tuple[int, ...], str], dict[str, Members]] = {}
        for name in names:
            row = rows[name]
            if row.get("duplicate_of") is None:
                groups.setdefault((tuple(row.get("shape") or ()), row.get("dtype") or ""), {})[name] = row
        for group in groups.values():
            if len(group) >= MIN_SIBLINGS:
                outliers += [outlier for figure in FIGURES for outlier in _outliers_of(pattern, group, figure)]
    outliers.sort(key=lambda each: (-abs(math.inf if each.score is None else each.score), each.name, each.figure))
    return [outlier._asdict() for outlier in outliers]


def _outliers_of(pattern: str, rows: Mapping[str, Members], figure: str) -> Iterator[Outlier]:
    figures = {name: value_figures(row) for name, row in rows.items()}
    values: dict[str, float] = {
        name: value
        for name, row in figures.items()
        if isinstance(value := row.get(figure), int | float) and math.isfinite(value)
    }
    if len(values) < MIN_SIBLINGS:
        return
    middle = median(values.values())
    deviation = _STD_PER_MAD * median(abs(value - middle) for value in values.values())
    for name, value in values.items():
        distance = abs(value - middle)
        score = distance / deviation if deviation else math.inf
        # A mean is judged by the spread of the values: near zero, means differ by any factor.
        scale = (figures[name].get("std") or 0.0) if figure == "mean" else abs(middle)
        if score > MIN_SCORE and distance > _MIN_DIFFERENCE.get(figure, _MIN_RELATIVE_DIFFERENCE * scale):
            signed = math.copysign(score, value - middle) if math.isfinite(score) else None
            yield Outlier(name, figure, value, middle, signed, pattern, len(values))
