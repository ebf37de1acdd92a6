"""The report as Markdown with tables, as GitHub and others read it.

A name is code: there nothing is a link, a mention or an emphasis. One that could end the code or the cell is written in
entities, which are never read as structure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from torchgauge.facts import View
from torchgauge.report.advice_text import effect_text, figure_text, place_text, range_text
from torchgauge.report.content import sections_of
from torchgauge.report.escape import visible
from torchgauge.report.headline import model_kind
from torchgauge.report.layout import Heading, shorten
from torchgauge.report.model import Cell, Chart, Code, Facts, Section, Table, Text
from torchgauge.report.options import Options
from torchgauge.report.registry import renderer
from torchgauge.report.sections import note_texts
from torchgauge.report.tables import (
    FACTS,
    category_table,
    module_table,
    op_table,
    summary_table,
    weight_table,
)
from torchgauge.report.verified_text import is_withdrawn, measured_text, plan_text, withdrawn_text

LONGEST_NAME = 120
# What can be structure in Markdown or HTML, a link, a mention, a formula, or the start of an emoji.
_STRUCTURE = re.compile(r"[\\`*\[\]<>#|~&@$]|(?<![^\W_])_|_(?![^\W_])|:(?=//|[\w+-]+:)|(?<=www)\.")
# What would make a list or a rule at the start of a line.
_OPENING = re.compile(r"^(\s*\d*)([-+=.)])")
# In code only these matter: the end of the code, the end of a cell, and the escape of both.
_ENDS_CODE = re.compile(r"[`|\\]|^\s|\s$")
_LISTED = ("places", "count")


@renderer("markdown", suffix=".md", contents="tables for a README or a pull request", scans=(".md",))
def render_markdown(view: View, options: Options) -> str:
    ops = [] if options.ops else [op_table(view), category_table(view)]
    tables = [summary_table(view), module_table(view, options), *ops, weight_table(view)]
    names = dict.fromkeys(filter(None, (model_kind(view), view.capture.target.name)))
    lines = [f"# {' · '.join(map(code, names))}"]
    for table in tables:
        lines += _table_lines(table)
    lines += [line for section in sections_of(view, options) for line in _section_lines(section)]
    lines += [*_advice_lines(view), *_note_lines(view), "", _footer(view)]
    return "\n".join(lines) + "\n"


def code(name: str) -> str:
    """A name from the model, as code; nothing where there is none."""
    text = shorten(visible(name), LONGEST_NAME)
    if not text:
        return ""
    if _ENDS_CODE.search(text):
        return f"<code>{_entities(text)}</code>"
    return f"`{text}`"


def prose(text: str) -> str:
    """Text that may hold such names."""
    return _entities(visible(text))


def _entities(text: str) -> str:
    return _STRUCTURE.sub(lambda found: _entity(found[0]), text)


def _entity(char: str) -> str:
    return f"&#{ord(char)};"


def _line(text: str) -> str:
    """Text at the start of a line."""
    return _OPENING.sub(lambda found: found[1] + _entity(found[2]), prose(text))


def _table_lines(table: Table) -> list[str]:
    if not table.rows:
        return []
    rules = ["---:" if heading.is_figure else ":---" for heading in table.headings]
    rows = [[_cell(cell) for cell in row] for row in table.rows]
    head = [[prose(heading.title) for heading in table.headings], rules]
    lines = [f"| {' | '.join(row)} |" for row in [*head, *rows]]
    title = ["", f"## {table.title}"] if table.title else []
    return [*title, "", *lines, *(line for note in table.notes for line in ("", prose(note)))]


def _section_lines(section: Section) -> list[str]:
    lines = ["", f"## {prose(section.title)}"]
    for block in section.blocks:
        match block:
            case Table():
                lines += _table_lines(block)
            case Facts():
                rows = tuple((Cell(name), Cell(value), Cell(note)) for name, value, note in block.rows)
                lines += _table_lines(Table("", FACTS, rows))
            case Text():
                lines += ["", _line(block.text)]
            case Code():
                lines += ["", *_fenced(block.text)]
            case Chart():
                bars = tuple((Cell(name=label), Cell(text)) for label, _, text in block.bars)
                lines += _table_lines(Table("", (Heading("", is_figure=False), Heading("")), bars))
    return lines


def _cell(cell: Cell) -> str:
    if not cell.name:
        return prose(cell.text)
    # A space at the start of a cell is lost, one that does not break is kept.
    indent = "\u00a0\u00a0" * max(cell.level - 1, 0) + ("└\u00a0" if cell.level else "")
    return f"{indent}{code(cell.name)}{prose(cell.text)}"


def _advice_lines(view: View) -> list[str]:
    standing = [row for row in view.advice if not is_withdrawn(row)]
    lines = [line for number, row in enumerate(standing, start=1) for line in _advice(number, row)]
    gone = [f"- {prose(withdrawn_text(row))}" for row in view.advice if is_withdrawn(row)]
    lines += [*([""] if lines else []), "Withdrawn: refuted when tried:", "", *gone] if gone else []
    advice = ["", "## Advice", "", *lines] if lines else []
    return [*advice, *_option_lines(view), *_plan_lines(view.plan)]


def _option_lines(view: View) -> list[str]:
    lines = [
        f"- {prose(effect_text(row))}: {prose(row['recommendation'])} ({code(row['rule'])})"
        f"{f'; {prose(measured)}' if (measured := measured_text(row)) else ''}"
        for row in view.options
    ]
    return ["", "## Options", "", *lines] if lines else []


def _plan_lines(plan: Mapping[str, Any] | None) -> list[str]:
    if plan is None or not plan["rules"]:
        return []
    return ["", "## Plan", "", prose(plan_text(plan)), "", *_fenced(plan["code"])]


def _advice(number: int, row: Mapping[str, Any]) -> Iterator[str]:
    lead = f"{number}. "
    yield f"{lead}{code(place_text(row))}: {prose(row['recommendation'])} ({prose(effect_text(row))})"
    indent = " " * len(lead)
    shown = [figure_text(name, value) for name, value in row["evidence"].items() if name not in _LISTED]
    yield f"{indent}- evidence: {', '.join(prose(text) for text in shown if text) or 'none'}"
    if known := range_text(row):
        yield f"{indent}- gain: {prose(known)}"
    if measured := measured_text(row):
        yield f"{indent}- {prose(measured)}"
    risk, confidence = prose(str(row["risk"])), prose(str(row["confidence"]))
    yield f"{indent}- risk: {risk}; confidence: {confidence}; rule {code(row['rule'])}"
    if row["code"]:
        yield from ("", *(f"{indent}{line}" for line in _fenced(row["code"])), "")


def _fenced(text: str) -> list[str]:
    runs = [len(run) for run in re.findall("`+", text)]
    fence = "`" * max(3, *(length + 1 for length in runs), 0)
    return [f"{fence}python", *(visible(line) for line in text.split("\n")), fence]


def _note_lines(view: View) -> list[str]:
    notes = note_texts(view)
    return ["", "## Notes", "", *(f"- {_line(text)}" for text in notes)] if notes else []


def _footer(view: View) -> str:
    capture = view.capture
    return f"Made by torchgauge {prose(capture.version)}, {code(capture.created)}."
