"""The rows that loggers show: modules with their figures, and the distributions of weights whose values were read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torchgauge.facts import View
from torchgauge.facts.figures import MODULES, Use, shown_in
from torchgauge.report.escape import visible

_COLUMNS = tuple(figure.key for figure in shown_in(Use.LOGS, MODULES))


@dataclass(frozen=True, slots=True)
class Histogram:
    """`total` and `total_squares` are of the finite values."""

    name: str
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    total: float
    total_squares: float


def module_columns(view: View) -> list[str]:
    """Those that some module has a figure in."""
    return [key for key in _COLUMNS if any(row[key] is not None for row in view.modules)]


def module_cells(view: View, keys: list[str]) -> list[list[Any]]:
    return [[visible(row[key]) if isinstance(row[key], str) else row[key] for key in keys] for row in view.modules]


def weight_histograms(view: View) -> Iterator[Histogram]:
    for row in view.weights:
        found = row.get("histogram")
        if found and found["counts"] and row.get("mean") is not None:
            counts = tuple(int(count) for count in found["counts"])
            squares = (row["l2"] or 0.0) ** 2
            yield Histogram(row["name"], tuple(found["edges"]), counts, row["mean"] * sum(counts), squares)
