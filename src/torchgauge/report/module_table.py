"""The module tree as a table."""

from __future__ import annotations

from dataclasses import replace

from torchgauge.facts import View
from torchgauge.facts.figures import MODULES, keys_known
from torchgauge.facts.measurements import TIMED
from torchgauge.report.columns import COLUMNS, DEFAULT_COLUMNS, columns_of
from torchgauge.report.escape import visible
from torchgauge.report.layout import Heading, Line, Span, lay_out, wrap
from torchgauge.report.options import Options
from torchgauge.report.outline import OutlineLine, outline
from torchgauge.report.sections import figure, text_cell
from torchgauge.units import format_percent

FOLDED = "×n: n equal blocks in a row, with the sum of their figures"
ON_HOST = "Time includes submodules, Self does not; measured on the CPU in separate runs. share: of the median run"
ON_DEVICE = "Time includes submodules, Self does not; device time of profiled runs. share: of the median run"


# Below this width of the terminal a default column is left out.
LEAST_WIDTH = {"output_shapes": 72, "self_time_s": 72, "flops": 56, "time_share": 48}
# More than what timing the modules costs, and what is outside the model's own call.
DRIFT = 0.15


def module_table(view: View, options: Options) -> list[Line]:
    options = replace(options, columns=columns_for_width(view, options))
    lines = outline(view, options)
    headings = [Heading("Module", is_figure=False)]
    headings += [Heading(COLUMNS[key].title, COLUMNS[key].is_figure) for key in options.columns]
    rows = [[_name_cell(line), *_cells(line, options)] for line in lines]
    notes = [FOLDED] if any(line.count > 1 for line in lines) else []
    notes += _time_notes(view, options)
    told = [line for note in notes for line in wrap(note, options.width, style="dim")]
    return [*lay_out(headings, rows, options.width), *told]


def columns_for_width(view: View, options: Options) -> tuple[str, ...]:
    """On a narrow terminal the names need the room of columns that nobody asked for."""
    columns = columns_of(view, options.columns)
    if options.columns != DEFAULT_COLUMNS:
        return columns
    narrow = {column for column, least in LEAST_WIDTH.items() if options.width < least}
    return tuple(column for column in columns if column not in narrow)


def _time_notes(view: View, options: Options) -> list[str]:
    figures = view.measurements
    if figures is None or not set(options.columns) & set(keys_known(MODULES, *TIMED)):
        return []
    profile = figures.get("profile") or {}
    if profile.get("device_s") is not None:
        return [ON_DEVICE]
    return [ON_HOST, *_drift_note(view.modules[0]["time_share"])]


def _drift_note(share: float | None) -> list[str]:
    """The modules of one run are as long as the run, unless the machine is another by then."""
    if share is None or abs(share - 1) <= DRIFT:
        return []
    told = f"Those runs took {format_percent(share)} of the median run: machine load differed"
    return [f"{told}; compare the shares only with each other"]


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
