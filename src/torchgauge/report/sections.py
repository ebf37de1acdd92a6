"""The pieces of the text report, from its data to lines."""

from __future__ import annotations

from collections.abc import Sequence

from torchgauge.facts import View
from torchgauge.report.bars import bar
from torchgauge.report.columns import format_shapes
from torchgauge.report.coverage import unused_modules
from torchgauge.report.escape import visible
from torchgauge.report.headline import fact_lines
from torchgauge.report.layout import Heading, Line, Span, lay_out, wrap
from torchgauge.report.model import Cell, Chart, Code, Facts, Section, Table, Text
from torchgauge.report.options import Options
from torchgauge.units import format_count

RANKED = 8


def heading(text: str) -> Line:
    return (Span(text, "heading"),)


def text_cell(text: str, style: str = "") -> Line:
    return (Span(visible(text), style),)


def figure(text: str) -> Line:
    """A zero is dimmed, so that the eye finds what costs."""
    return (Span(text, "dim" if text in ("0", "0 B", "0.0 %", "-") else "figure"),)


def shapes_text(inputs: Sequence[tuple[int, ...]], outputs: Sequence[tuple[int, ...]]) -> str:
    taken = ", ".join(format_shapes([list(shape)]) for shape in inputs[:3]) + (", …" if len(inputs) > 3 else "")
    return f"{taken} → {format_shapes([list(shape) for shape in outputs])}"


def section_lines(section: Section, width: int) -> list[Line]:
    lines = [heading(section.title)]
    for block in section.blocks:
        match block:
            case Table():
                lines += lay_out(block.headings, [_row(row, block.headings) for row in block.rows], width)
                lines += [line for note in block.notes for line in wrap(note, width, style="dim")]
            case Facts():
                lines += fact_lines([(name, visible(value), visible(note)) for name, value, note in block.rows], width)
            case Text():
                lines += wrap(visible(block.text), width, style="warning" if block.is_warning else "")
            case Code():
                lines += [(Span(f"    {visible(line)}"),) for line in block.text.split("\n")]
            case Chart():
                lines += _chart(block, width)
    return lines


def _row(row: Sequence[Cell], headings: Sequence[Heading]) -> list[Line]:
    cells: list[Line] = []
    for place, (cell, column) in enumerate(zip(row, headings, strict=True)):
        if column.is_figure:
            cells.append((Span("?", "warning"),) if cell.text == "?" else figure(cell.text))
        else:
            cells.append(text_cell(cell.name + cell.text, "dim" if place else ""))
    return cells


def _chart(chart: Chart, width: int) -> list[Line]:
    top = max((value for _, value, _ in chart.bars), default=0.0)
    room = max(width // 3, 10)
    rows = [[text_cell(label), (Span(bar(value, top, room)),), figure(text)] for label, value, text in chart.bars]
    headings = [Heading("", is_figure=False), Heading("", is_figure=False), Heading("")]
    return lay_out(headings, rows, width)[1:]


def notes(view: View, options: Options) -> list[Line]:
    lines = [
        line
        for text in note_texts(view)
        for line in wrap(visible(text), options.width, lead=(Span("- "),), style="warning")
    ]
    return [heading("Notes"), *lines] if lines else []


def note_texts(view: View) -> list[str]:
    """What the reader must know of the run before trusting its figures."""
    run = view.capture.run
    texts = []
    if run.mode == "real":
        texts.append(f"The model was run for real: {run.reason or 'it cannot be run on fake tensors'}")
    texts += run.warnings
    unused = unused_modules(view)
    if unused:
        names = ", ".join(f"{node.path} ({format_count(node.record.params)} params)" for node in unused[:6])
        more = f" and {len(unused) - 6} more" if len(unused) > 6 else ""
        texts.append(f"Never used in this run: {names}{more}")
    return texts
