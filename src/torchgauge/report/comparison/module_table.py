"""The modules whose figures differ, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torchgauge.errors import UsageError
from torchgauge.report.columns import COLUMNS, DEFAULT_COLUMNS
from torchgauge.report.comparison.changes import change
from torchgauge.report.comparison.data import Compared
from torchgauge.report.comparison.groups import RowGroup, grouped_rows
from torchgauge.report.comparison.readings import Reading
from torchgauge.report.comparison.rows import FIGURES, MEASURED
from torchgauge.report.comparison.tables import Table
from torchgauge.report.escape import visible
from torchgauge.report.layout import Heading
from torchgauge.report.options import Options
from torchgauge.report.outline import PAGE_LINES
from torchgauge.report.ranking import THE_MODEL
from torchgauge.units import format_exact

COMPARED = ("params", "macs")
EQUAL = "×n: n modules with the same figures, shown once with those of one"
NO_INTERVAL = "Times and energies of modules have no interval: read their differences with that of the whole run"


@dataclass(frozen=True, slots=True)
class Shape:
    """How the table is shaped: which figures, how deep, in which order."""

    columns: tuple[str, ...]
    depth: int | None
    sort: str | None


def table_shape(compared: Compared, options: Options) -> Shape:
    check_columns(options)
    columns = options.columns
    if columns == DEFAULT_COLUMNS:
        timed = sum(value is not None for value in compared.modules[0].values("time_s")) > 1
        known = [key for key in COMPARED if any(v is not None for v in compared.modules[0].values(key))]
        columns = (*known, *(("time_s",) if timed else ()))
    return Shape(columns, options.depth, options.sort)


def check_columns(options: Options) -> None:
    """Before the work: a column that is no figure of a module cannot be compared."""
    chosen = () if options.columns == DEFAULT_COLUMNS else options.columns
    for key in (*chosen, *([options.sort] if options.sort else [])):
        if key not in FIGURES:
            raise UsageError(f"'{key}' cannot be compared; choose from: {', '.join(FIGURES)}")


def module_table(compared: Compared, options: Options) -> Table | None:
    shape = table_shape(compared, options)
    changed = [row for row in compared.modules if row.differs_in(shape.columns) and not row.is_below_absent]
    places = grouped_rows(changed)
    groups = _chosen(places, shape)
    if not groups:
        return None
    labels = [side.label for side in compared.sides]
    headings = [Heading("Module", is_figure=False)]
    for key in shape.columns:
        headings += [Heading(f"{COLUMNS[key].title} {labels[0]}"), *(Heading(label) for label in labels[1:])]
        headings += [Heading("change")] if len(labels) == 2 else []
    rows = tuple(_cells(group, shape.columns) for group in groups)
    width = len(labels) + (len(labels) == 2)
    notes = tuple(_notes(groups, len(places), shape))
    return Table("Modules that differ", tuple(headings), rows, notes, lead=1, group=width)


def _chosen(places: list[RowGroup], shape: Shape) -> list[RowGroup]:
    groups = [group for group in places if shape.depth is None or group.depth <= shape.depth]
    if groups and shape.depth is None:
        groups = _fitting(groups)
    if shape.sort is None:
        return groups
    key = shape.sort
    return sorted(groups, key=lambda group: _size(group, key), reverse=True)


def _notes(groups: list[RowGroup], whole: int, shape: Shape) -> Iterator[str]:
    if len(groups) < whole:
        yield f"shown: {format_exact(len(groups))} of {format_exact(whole)} places; --depth shows more"
    if any(group.count > 1 for group in groups):
        yield EQUAL
    if set(shape.columns) & set(MEASURED):
        yield NO_INTERVAL


def _fitting(groups: list[RowGroup]) -> list[RowGroup]:
    """As deep as fits a page, and at least one level."""
    depths = sorted({group.depth for group in groups})
    fitting = [depth for depth in depths if sum(group.depth <= depth for group in groups) <= PAGE_LINES]
    deepest = fitting[-1] if fitting else depths[0]
    return [group for group in groups if group.depth <= deepest]


def _size(group: RowGroup, key: str) -> float:
    """How much the figure differs; what a side lacks is all of it."""
    known = [value or 0 for value in group.figures[key]]
    return max(known) - min(known)


def _cells(group: RowGroup, columns: tuple[str, ...]) -> tuple[str, ...]:
    times = f" ×{group.count}" if group.count > 1 else ""
    # The root has no name but its type, as in the module tree.
    name = "" if group.paths == THE_MODEL else f"{visible(group.paths)}{times} "
    cells = [f"{name}{visible(group.kind)}"]
    for key in columns:
        values = group.figures[key]
        cells += [COLUMNS[key].form(value) for value in values]
        if len(values) == 2:
            # Of a module that a side lacks, all is new or gone.
            base, other = (Reading(value) for value in values)
            cells.append(_presence(values) or change(base, other).text)
    return tuple(cells)


def _presence(values: tuple[float | None, ...]) -> str | None:
    base, other = values
    if base is None and other is not None:
        return "new"
    return "gone" if other is None and base is not None else None
