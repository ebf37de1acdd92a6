"""What stands out among the weights: tensors apart from their siblings, layers as shades, what to do, what failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchgauge.facts import View
from torchgauge.report.escape import visible
from torchgauge.report.layout import Heading, Line, Span, lay_out, wrap
from torchgauge.report.options import Options
from torchgauge.report.ranking import THE_MODEL
from torchgauge.report.sections import figure, heading, text_cell
from torchgauge.report.weight_heatmap import LEGEND, HeatMap, heat_maps, narrowed, shade
from torchgauge.report.weight_sections import more_lines
from torchgauge.report.weight_statistics import advice, by_operation, summary_part
from torchgauge.units import format_bytes, format_count, format_exact, format_percent, format_value

OUTLIERS, ADVICE, OPERATIONS, FAILURES = 10, 10, 10, 10
MAPS, MAP_ROWS, MAP_LABEL = 2, 10, 28


def weight_outliers(view: View, options: Options) -> list[Line]:
    found = summary_part(view, "outliers") or []
    headings = [Heading("Tensor", is_figure=False), Heading("Figure", is_figure=False)]
    headings += [Heading(title) for title in ("Value", "Siblings' median", "Score")]
    rows = [
        [
            text_cell(row["name"]),
            text_cell(row["figure"].replace("_", " ")),
            figure(format_value(row["value"])),
            figure(format_value(row["median"])),
            figure(format_value(row["score"])),
        ]
        for row in found[:OUTLIERS]
    ]
    table = lay_out(headings, rows, options.width)
    return [heading("Outliers among repeated layers"), *table, *more_lines(len(found) - OUTLIERS)] if rows else []


def weight_heat_maps(view: View, options: Options) -> list[Line]:
    lines: list[Line] = []
    for found in heat_maps(view)[:MAPS]:
        lines += [*([()] if lines else []), *_heat_map(found, options)]
    return [*lines, *wrap(LEGEND, options.width, style="dim")] if lines else []


def _heat_map(found: HeatMap, options: Options) -> list[Line]:
    rows = found.rows[:MAP_ROWS]
    labels = min(max(len(row.label) for row in rows), MAP_LABEL)
    figures = max(len(format_value(value)) for row in rows for value in (row.median, row.largest))
    room = max(options.width - labels - 2 * max(figures, len("Largest")) - 6, 8)
    width = min(len(found.columns), room)
    times = 2 if 2 * width <= room else 1
    headings = [
        Heading("Weight", is_figure=False),
        Heading(_axis(found, width * times)),
        Heading("Median"),
        Heading("Largest"),
    ]
    cells = [
        [
            text_cell(row.label),
            (Span("".join(shade(cell, row.median) * times for cell in narrowed(row.cells, row.median, width))),),
            figure(format_value(row.median)),
            figure(format_value(row.largest)),
        ]
        for row in rows
    ]
    together = -(-len(found.columns) // width)
    merged = f", up to {together} layers a column, of which the one that differs most shows" if together > 1 else ""
    title = f"{found.figure.capitalize()} by layer, {found.stem}{merged}"
    return [
        *wrap(visible(title), options.width, style="heading"),
        *lay_out(headings, cells, options.width),
        *more_lines(len(found.rows) - len(rows), "weights"),
    ]


def _axis(found: HeatMap, width: int) -> str:
    """The first and the last layer over the ends of the columns."""
    first, last = (".".join(map(str, column)) for column in (found.columns[0], found.columns[-1]))
    gap = width - len(first) - len(last)
    return f"{first}{' ' * gap}{last}" if gap > 0 else first.ljust(width)


def weight_advice(view: View, options: Options) -> list[Line]:
    found = advice(view)
    lines: list[Line] = []
    for entry in found[:ADVICE]:
        again = f" (and {format_exact(entry.siblings)} like it)" if entry.siblings else ""
        lines += wrap(visible(f"{entry.name}: {entry.text}{again}"), options.width, lead=(Span("- "),))
    return [heading("Recommendations for weights"), *lines, *more_lines(len(found) - ADVICE)] if lines else []


def weight_operations(view: View, options: Options) -> list[Line]:
    found = by_operation(view)
    headings = [Heading("Op", is_figure=False), Heading("Module", is_figure=False)]
    headings += [Heading(title) for title in ("×", "Weights", "Prunable", "30 dB", "Bytes then")]
    rows = [
        [
            text_cell(share.op),
            text_cell(share.module or THE_MODEL, "dim"),
            figure(format_exact(share.calls)),
            figure(format_bytes(share.nbytes)),
            figure(format_percent(share.removable)),
            figure(share.smallest_30db),
            figure(format_bytes(share.bytes_after)),
        ]
        for share in found[:OPERATIONS]
    ]
    table = lay_out(headings, rows, options.width)
    return (
        [heading("Pruning and quantization by operation"), *table, *more_lines(len(found) - OPERATIONS)] if rows else []
    )


def weight_packings(view: View, options: Options) -> list[Line]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in view.weights:
        if row.get("packing"):
            groups.setdefault(row["packing"]["layout"], []).append(row)
    headings = [Heading("Packed as", is_figure=False)]
    headings += [Heading(title) for title in ("Tensors", "Values", "Bytes", "Code bits used")]
    rows = [[text_cell(name), *_packing_figures(members)] for name, members in groups.items()]
    return [heading("Packed weights"), *lay_out(headings, rows, options.width)] if rows else []


def _packing_figures(rows: Sequence[dict[str, Any]]) -> list[Line]:
    used = [row["code_entropy_bits"] for row in rows if row["code_entropy_bits"] is not None]
    ends = dict.fromkeys(format_value(end) for end in (min(used), max(used))) if used else {"-": None}
    span = f"{'–'.join(ends)} of {rows[0]['packing']['bits']}"
    return [
        figure(format_exact(len(rows))),
        figure(format_count(sum(row["logical_elements"] or 0 for row in rows))),
        figure(format_bytes(sum(row["bytes"] for row in rows))),
        figure(span),
    ]


def weight_failures(view: View, options: Options) -> list[Line]:
    failures = summary_part(view, "failures") or []
    lines: list[Line] = []
    for failure in failures[:FAILURES]:
        text = visible(f"{failure['name']}: {failure['reason']}")
        lines += wrap(text, options.width, lead=(Span("- "),), style="warning")
    return [heading("Weights that could not be read"), *lines, *more_lines(len(failures) - FAILURES)] if lines else []
