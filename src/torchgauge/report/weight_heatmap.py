"""A figure of the weights by layer, as shades: a row for each place in the repeated block, a column for each layer.

A shade says how the value compares with the median of its row, on a scale that is the same for every map.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from statistics import median

from torchgauge.facts import Row, View
from torchgauge.facts.siblings import Stem, by_stem, layer_of
from torchgauge.facts.weights import value_figures

# Up to this many times the row's median; above the last it is solid.
SHADES = ((0.5, "·"), (0.8, "░"), (1.25, "▒"), (2.0, "▓"))
SOLID, UNKNOWN, ABSENT = "█", "?", " "
LEGEND = "· to 0.5, ░ to 0.8, ▒ to 1.25, ▓ to 2, █ above 2 times the row's median; ? no finite value"
MIN_LAYERS = 3


@dataclass(frozen=True, slots=True)
class HeatRow:
    """`cells` has a value for each column: None where the layer has no such weight, NaN where the value is unknown."""

    label: str
    nbytes: int
    cells: tuple[float | None, ...]
    median: float
    largest: float


@dataclass(frozen=True, slots=True)
class HeatMap:
    """The layers of one `stem`, such as `blocks.*`; `columns` are their indices."""

    figure: str
    stem: str
    columns: tuple[tuple[int, ...], ...]
    rows: tuple[HeatRow, ...]

    @property
    def nbytes(self) -> int:
        return sum(row.nbytes for row in self.rows)


def heat_maps(view: View, figure: str = "std") -> list[HeatMap]:
    """One map for each list of repeated blocks, the largest first; matrices alone, and only where layers are many."""
    rows = {
        row["name"]: Row(value_figures(row))
        for row in view.weights
        if (figure in row and row["role"] == "parameter" and row["shared_with"] is None and len(row["shape"]) > 1)
    }
    maps = []
    for stem, patterns in by_stem({name: row["bytes"] for name, row in rows.items()}).items():
        columns = tuple(sorted({layer_of(name)[: stem.depth] for names in patterns.values() for name in names}))
        if len(columns) >= MIN_LAYERS:
            found = [
                _heat_row(pattern, [rows[name] for name in names], figure, stem, columns)
                for pattern, names in patterns.items()
            ]
            kept = sorted((row for row in found if row is not None), key=lambda row: -row.nbytes)
            maps.append(HeatMap(figure, stem.path, columns, tuple(kept)))
    return sorted(maps, key=lambda found: -found.nbytes)


def _heat_row(
    pattern: str, rows: Sequence[Row], figure: str, stem: Stem, columns: Sequence[tuple[int, ...]]
) -> HeatRow | None:
    by_layer: dict[tuple[int, ...], list[float]] = {}
    for row in rows:
        value = row[figure]
        known = value is not None and isfinite(value)
        by_layer.setdefault(layer_of(row["name"])[: stem.depth], []).append(float(value) if known else float("nan"))
    values = [value for members in by_layer.values() for value in members if isfinite(value)]
    if not values:
        return None
    middle = median(values)
    cells = tuple(farthest(by_layer[layer], middle) if layer in by_layer else None for layer in columns)
    label = pattern.removeprefix(stem.path).removesuffix(".weight").strip(".") or pattern
    return HeatRow(label, sum(row["bytes"] for row in rows), cells, middle, max(values))


def farthest(values: Iterable[float], middle: float) -> float:
    """Of several weights in one cell the one that differs most: what stands out must not hide. Unknown wins."""
    listed = list(values)
    unknown = [value for value in listed if not isfinite(value)]
    return unknown[0] if unknown else max(listed, key=lambda value: abs(value - middle))


def shade(value: float | None, middle: float) -> str:
    if value is None:
        return ABSENT
    if not isfinite(value):
        return UNKNOWN
    if not middle:
        return SHADES[2][1] if not value else SOLID
    return next((mark for limit, mark in SHADES if value / middle <= limit), SOLID)


def narrowed(cells: Sequence[float | None], middle: float, width: int) -> list[float | None]:
    """Neighbouring cells together, so that at most `width` are left; each shows the one that differs most."""
    count = len(cells)
    if count <= width:
        return list(cells)
    cuts = [index * count // width for index in range(width + 1)]
    rows = []
    for start, stop in pairwise(cuts):
        present = [cell for cell in cells[start:stop] if cell is not None]
        rows.append(farthest(present, middle) if present else None)
    return rows
