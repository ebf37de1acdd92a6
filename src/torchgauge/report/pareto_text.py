"""Time against energy over the points of a sweep: a table, and a plot of characters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchgauge.facts import View
from torchgauge.report.escape import visible
from torchgauge.report.layout import Heading, Line, Span, lay_out, wrap
from torchgauge.report.measurements import measured_rows
from torchgauge.report.options import Options
from torchgauge.report.sections import figure, heading, text_cell
from torchgauge.units import format_joules, format_seconds, format_watts

TIME, ENERGY, GUESS = "time_per_sample_s", "energy_per_sample_j", "estimated_energy_per_sample_j"
_ROWS, _MOST_COLUMNS, _LEAST_COLUMNS = 10, 60, 20
_ON, _OFF = "●", "·"


def pareto(view: View, options: Options) -> list[Line]:
    rows = [row for row in measured_rows(view, "sweep") if row.get(ENERGY) is not None or row.get(GUESS)]
    if not rows:
        return []
    is_measured = any(row.get(ENERGY) is not None for row in rows)
    title = "Time against energy, per sample" + ("" if is_measured else ", energy ESTIMATED")
    lines = [heading(title), *_table(rows, options)]
    if not is_measured:
        text = "Energy is estimated from time, so no Pareto front can be drawn."
        return [*lines, *wrap(text, options.width, style="dim")]
    points = [row for row in rows if row.get(ENERGY) is not None and row.get(TIME)]
    return [*lines, *wrap(f"{_ON}: no other point is both faster and more efficient.", options.width, style="dim"),
            *plot(points, options.width)]  # fmt: skip


def _table(rows: Sequence[Mapping[str, Any]], options: Options) -> list[Line]:
    headings = [Heading("Point", is_figure=False), *(Heading(title) for title in ("Time", "Energy", "Power cap", ""))]
    cells = [
        [
            text_cell(f"{row['key']} {row['value']}"),
            figure(format_seconds(row.get(TIME))),
            figure(_energy(row)),
            figure(format_watts(row.get("power_limit_watts"))),
            text_cell(_ON if row.get("efficient") else "", "count"),
        ]
        for row in rows
    ]
    return lay_out(headings, cells, options.width)


def _energy(row: Mapping[str, Any]) -> str:
    if row.get(ENERGY) is not None:
        return format_joules(row[ENERGY])
    guess = row[GUESS]
    return f"≈ {format_joules(guess['value'])} ({format_joules(guess['low'])} to {format_joules(guess['high'])})"


def plot(points: Sequence[Mapping[str, Any]], width: int) -> list[Line]:
    """Time to the right, energy upwards, both from zero; an efficient point hides one that is not."""
    columns = max(_LEAST_COLUMNS, min(_MOST_COLUMNS, width - 12))
    longest, largest = max(row[TIME] for row in points), max(row[ENERGY] for row in points)
    canvas = [[" "] * columns for _ in range(_ROWS)]
    for row in sorted(points, key=lambda one: bool(one.get("efficient"))):
        column = min(int(row[TIME] / longest * columns), columns - 1)
        height = min(int(row[ENERGY] / largest * _ROWS), _ROWS - 1)
        canvas[_ROWS - 1 - height][column] = _ON if row.get("efficient") else _OFF
    labels = [format_joules(largest), *[""] * (_ROWS - 1)]
    margin = max(map(len, labels))
    lines: list[Line] = [
        (Span(f"{label:>{margin}} │", "dim"), Span("".join(cells).rstrip(), "figure"))
        for label, cells in zip(labels, canvas, strict=True)
    ]
    end = visible(format_seconds(longest))
    axis = f"{'0':>{margin}} └{'─' * columns}"
    return [*lines, (Span(axis, "dim"),), (Span(" " * (margin + 2 + columns - len(end)) + end, "dim"),)]
