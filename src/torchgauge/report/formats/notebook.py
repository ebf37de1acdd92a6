"""The notebook display: a fragment of HTML that takes its colours from the page around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape

from torchgauge.facts import View
from torchgauge.report.bars import bar
from torchgauge.report.columns import COLUMNS, columns_of
from torchgauge.report.content import sections_of
from torchgauge.report.coverage import coverage
from torchgauge.report.escape import visible
from torchgauge.report.headline import memory_facts, model_kind, parameter_note, run_text
from torchgauge.report.model import Chart, Code, Facts, Section, Table, Text
from torchgauge.report.options import Options
from torchgauge.report.origin import stored_facts
from torchgauge.report.outline import OutlineLine, outline
from torchgauge.report.registry import renderer
from torchgauge.units import format_count, format_exact, format_seconds

_TABLE = 'style="border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.4em 0"'
_FIGURE = 'style="text-align:right;padding:.1em .8em"'
_TEXT = 'style="text-align:left;padding:.1em .8em;white-space:pre;font-family:monospace"'
BAR = 20  # characters of the longest
_FAINT = 'style="opacity:.65"'


@renderer("fragment", contents="what a notebook shows")
def render_fragment(view: View, options: Options) -> str:
    name = _html(model_kind(view))
    parts = [
        f"<div><b>{name}</b> <span {_FAINT}>{_html(run_text(view))}</span>",
        _totals(view),
        _modules(view, options),
    ]
    parts += [piece for section in sections_of(view, options) for piece in _section(section)]
    return "\n".join([*parts, *_warnings(view), "</div>"])


def _section(section: Section) -> list[str]:
    pieces = [f"<div><b>{_html(section.title)}</b></div>"]
    for block in section.blocks:
        match block:
            case Table():
                headings = [(heading.title, heading.is_figure) for heading in block.headings]
                texts = [[cell.name + cell.text for cell in row] for row in block.rows]
                rows = [[(text, heading[1]) for text, heading in zip(row, headings, strict=True)] for row in texts]
                pieces += [_table(headings, rows), *(f"<div {_FAINT}>{_html(note)}</div>" for note in block.notes)]
            case Facts():
                facts = [[(name, False), (value, True), (note, False)] for name, value, note in block.rows]
                pieces.append(_table([], facts))
            case Text():
                pieces.append(f"<div>{'⚠ ' if block.is_warning else ''}{_html(block.text)}</div>")
            case Code():
                lines = "\n".join(map(_html, block.text.split("\n")))
                pieces.append(f"<pre>{lines}</pre>")
            case Chart():
                top = max((value for _, value, _ in block.bars), default=0.0)
                bars = [(label, bar(value, top, BAR), text) for label, value, text in block.bars]
                drawn = [[(label, False), (picture, False), (text, True)] for label, picture, text in bars]
                pieces.append(_table([], drawn))
    return pieces


def _html(text: str) -> str:
    return escape(visible(text))


def _totals(view: View) -> str:
    totals, note = view.totals, parameter_note(view)
    figures = [
        ("Parameters", format_exact(totals.params) + (f" ({note})" if note else "")),
        *((name, f"{value} ({remark})") for name, value, remark in stored_facts(view)),
    ]
    if view.capture.has_code:
        figures += [("MACs", format_count(totals.macs)), ("FLOPs", format_count(totals.flops))]
    figures += [(name, f"{value}: {note}" if value else note) for name, value, note in memory_facts(view)]
    if totals.time_s is not None:
        figures.append(("Measured latency", f"{format_seconds(totals.time_s)}, the median of undisturbed runs"))
    return _table([], [[(name, False), (value, False)] for name, value in figures])


def _modules(view: View, options: Options) -> str:
    options = replace(options, columns=columns_of(view, options.columns))
    headings = [("Module", False), *((COLUMNS[key].title, COLUMNS[key].is_figure) for key in options.columns)]
    rows = [[(_label(line), False), *_cells(line, options)] for line in outline(view, options)]
    return _table(headings, rows)


def _label(line: OutlineLine) -> str:
    times = f" ×{line.count}" if line.count > 1 else ""
    return f"{line.guide}{line.name}{times} {line.kind}{line.remark}" if line.name else line.kind


def _cells(line: OutlineLine, options: Options) -> list[tuple[str, bool]]:
    return [(COLUMNS[key].form(line.row[key]), COLUMNS[key].is_figure) for key in options.columns]


def _warnings(view: View) -> list[str]:
    uncounted = coverage(view).uncounted_ops if view.capture.has_code else ()
    texts = list(view.capture.run.warnings)
    if uncounted:
        texts.append(f"Ops without a formula, counted as unknown: {', '.join(entry.op for entry in uncounted)}")
    return [f"<div>⚠ {_html(text)}</div>" for text in texts]


def _table(headings: Sequence[tuple[str, bool]], rows: Sequence[Sequence[tuple[str, bool]]]) -> str:
    head = [f"<tr>{''.join(_cell('th', *heading) for heading in headings)}</tr>"] if headings else []
    body = [f"<tr>{''.join(_cell('td', *cell) for cell in row)}</tr>" for row in rows]
    return "\n".join([f"<table {_TABLE}>", *head, *body, "</table>"])


def _cell(tag: str, text: str, is_figure: bool) -> str:
    return f"<{tag} {_FIGURE if is_figure else _TEXT}>{_html(text)}</{tag}>"
