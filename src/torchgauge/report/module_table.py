"""The module tree as a table."""

from __future__ import annotations

from dataclasses import replace

from torchgauge.report.columns import COLUMNS, DEFAULT_COLUMNS
from torchgauge.report.escape import visible
from torchgauge.report.layout import Heading, Line, Span, lay_out, wrap
from torchgauge.report.options import Options
from torchgauge.report.outline import OutlineLine, outline
from torchgauge.report.sections import figure, heading, text_cell
from torchgauge.view import View

STORED_COLUMNS = ("params", "param_bytes")
FOLDED = "×n: n equal blocks in a row, shown once with the figures of all n together"


def module_table(view: View, options: Options) -> list[Line]:
    if not view.capture.has_code and options.columns == DEFAULT_COLUMNS:
        options = replace(options, columns=STORED_COLUMNS)
    lines = outline(view, options)
    headings = [Heading("Module", is_figure=False)]
    headings += [Heading(COLUMNS[key].title, COLUMNS[key].is_figure) for key in options.columns]
    rows = [[_name_cell(line), *_cells(line, options)] for line in lines]
    note = wrap(FOLDED, options.width, style="dim") if any(line.count > 1 for line in lines) else []
    return [heading("Modules"), *lay_out(headings, rows, options.width), *note]


def _name_cell(line: OutlineLine) -> Line:
    times = f" ×{line.count}" if line.count > 1 else ""
    if not line.name:
        return (Span(visible(line.kind) or "(root)", "name"),)
    return (
        Span(line.guide, "guide"),
        Span(visible(line.name), "name"),
        Span(f"{times} ", "count"),
        Span(visible(line.kind + line.remark), "dim"),
    )


def _cells(line: OutlineLine, options: Options) -> list[Line]:
    cells = []
    for key in options.columns:
        column = COLUMNS[key]
        text = column.form(line.row[key])
        cells.append(figure(text) if column.is_figure else text_cell(text))
    return cells
