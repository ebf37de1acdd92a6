"""Tensors that stand apart from their siblings: the same place in other layers, the same shape, another scale."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any, NamedTuple

from torchgauge.facts.siblings import by_pattern
from torchgauge.facts.weight_values import value_figures

FIGURES = ("std", "abs_max", "mean", "kurtosis", "sparsity", "spectral_norm", "stable_rank", "entropy_bits")
MIN_SIBLINGS = 5
MIN_SCORE = 6.0
# 1 / Φ⁻¹(3/4): the deviation of normal data from its median absolute deviation.
_DEVIATIONS = 1.4826
# A difference that matters, in the unit of the figure; relative to the median where it has a scale of its own.
_RELATIVE = 0.5
_ABSOLUTE = {"kurtosis": 1.0, "sparsity": 0.05, "entropy_bits": 0.5}


class Outlier(NamedTuple):
    """`score` is the distance to the siblings' median in robust standard deviations, None where all others agree."""

    name: str
    figure: str
    value: float
    median: float
    score: float | None
    siblings: str
    of: int


def outliers(rows: Mapping[str, Mapping[str, Any]] | Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tensors and figures that stand apart, the farthest first; rows by name, or with a name each."""
    named = dict(rows) if isinstance(rows, Mapping) else {str(row["name"]): row for row in rows}
    found = [outlier for group in _siblings(named) for figure in FIGURES for outlier in _standing_apart(group, figure)]
    return [outlier._asdict() for outlier in sorted(found, key=_order)]


class _Group(NamedTuple):
    pattern: str
    rows: dict[str, Mapping[str, Any]]


def _siblings(rows: Mapping[str, Mapping[str, Any]]) -> Iterable[_Group]:
    for pattern, names in by_pattern(rows).items():
        alike: dict[tuple[Any, ...], dict[str, Mapping[str, Any]]] = {}
        for name in names:
            row = rows[name]
            if row.get("duplicate_of") is None:
                alike.setdefault((tuple(row.get("shape") or ()), row.get("dtype")), {})[name] = row
        yield from (_Group(pattern, members) for members in alike.values() if len(members) >= MIN_SIBLINGS)


def _standing_apart(group: _Group, figure: str) -> Iterable[Outlier]:
    found: dict[str, Any] = {name: value_figures(row).get(figure) for name, row in group.rows.items()}
    values: dict[str, float] = {name: value for name, value in found.items() if _is_number(value)}
    if len(values) < MIN_SIBLINGS:
        return
    middle = median(values.values())
    deviation = _DEVIATIONS * median(abs(value - middle) for value in values.values())
    for name, value in values.items():
        distance = abs(value - middle)
        score = distance / deviation if deviation else math.inf
        if score > MIN_SCORE and distance > _mattering(figure, middle, value_figures(group.rows[name])):
            signed = math.copysign(score, value - middle) if math.isfinite(score) else None
            yield Outlier(name, figure, value, middle, signed, group.pattern, len(values))


def _mattering(figure: str, middle: float, row: Mapping[str, Any]) -> float:
    """A mean is judged by the spread around it: near zero, means differ by any factor."""
    if figure == "mean":
        return _RELATIVE * (row.get("std") or 0.0)
    return _ABSOLUTE.get(figure, _RELATIVE * abs(middle))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _order(outlier: Outlier) -> tuple[float, str, str]:
    return -abs(math.inf if outlier.score is None else outlier.score), outlier.name, outlier.figure
