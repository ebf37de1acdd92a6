"""The report as Markdown with tables, as GitHub and others read it.

A name is code: there nothing is a link, a mention or an emphasis. One that could end the code or the cell is written in
entities, which are never read as structure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from torchgauge.facts import View
from torchgauge.report.bars import course_rows, scatter
from torchgauge.report.content import sections_of
from torchgauge.report.content.summary import model_names
from torchgauge.report.layout import shorten
from torchgauge.report.model import (
    Block,
    Cell,
    Chart,
    Code,
    Course,
    Facts,
    Listing,
    Scatter,
    Section,
    Table,
    Text,
    texts,
)
from torchgauge.report.options import Detail, Options
from torchgauge.report.registry import renderer
from torchgauge.units import inert_lines, visible

LONGEST_NAME = 120
# Characters that can be structure in Markdown or HTML, a link, a mention, a formula, or the start of an emoji.
_STRUCTURE = re.compile(r"[\\`*\[\]<>#|~&@$]|(?<![^\W_])_|_(?![^\W_])|:(?=//|[\w+-]+:)|(?<=www)\.")
# Characters that make a list or a rule at the start of a line.
_OPENING = re.compile(r"^(\s*\d*)([-+=.)])")
# In code only these matter: the end of the code, the end of a cell, and the escape of both.
_ENDS_CODE = re.compile(r"[`|\\]|^\s|\s$")
# Characters of a line drawn over time, and of a plot.
_PLOT_WIDTH = 60


@renderer("markdown", suffix=".md", contents="tables for a README or a pull request", scans=(".md",))
def render_markdown(view: View, options: Options) -> str:
    sections = sections_of(view, replace(options, detail=Detail.LONG))
    footer = f"Made by torchgauge {escape_markdown(view.capture.version)}, {code(view.capture.created)}."
    return f"# {' · '.join(map(code, model_names(view)))}\n\n{write_sections(sections, options.width)}\n{footer}\n"


def write_sections(sections: Iterable[Section], width: int) -> str:
    """Blocks apart by a blank line, as Markdown asks."""
    blocks: list[str] = []
    for section in sections:
        blocks += [f"## {escape_markdown(section.title)}"] if section.title else []
        blocks += filter(None, ("\n".join(block_lines(block)) for block in section.blocks))
    return inert_lines("\n\n".join(blocks) + "\n")


def code(name: str) -> str:
    """A name from the model, as code; nothing where there is none."""
    text = shorten(visible(name), LONGEST_NAME)
    if not text:
        return ""
    if _ENDS_CODE.search(text):
        return f"<code>{_entities(text)}</code>"
    return f"`{text}`"


def escape_markdown(text: str) -> str:
    """Text that may hold such names."""
    return _entities(visible(text))


def _entities(text: str) -> str:
    return _STRUCTURE.sub(lambda found: _entity(found[0]), text)


def _entity(char: str) -> str:
    return f"&#{ord(char)};"


def _line(text: str) -> str:
    """Text at the start of a line."""
    return _OPENING.sub(lambda found: found[1] + _entity(found[2]), escape_markdown(text))


def block_lines(block: Block) -> list[str]:
    match block:
        case Table():
            return _table_lines(block)
        case Facts() | Chart():
            return _table_lines(block.as_table())
        case Text():
            return [f"**{escape_markdown(block.text)}**" if block.is_alarm else _line(block.text)]
        case Listing():
            lines = []
            for number, item in enumerate(block.items, start=1):
                lead = f"{number}. " if block.mark == "1." else "- "
                indent = " " * len(lead)
                lines.append(f"{lead}{code(item.name)}{escape_markdown(item.text) if item.name else _line(item.text)}")
                for label, text in (*item.facts, *item.after):
                    lines.append(f"{indent}- {f'{escape_markdown(label)}: ' if label else ''}{escape_markdown(text)}")
                if item.code:
                    lines += ["", *(f"{indent}{line}" for line in _fenced(item.code)), ""]
            return lines[:-1] if lines[-1] == "" else lines
        case Code():
            return _fenced(block.text)

        case Course():
            drawn = course_rows(block, _PLOT_WIDTH)
            rows = tuple((Cell(label), Cell(name=line), Cell(text)) for label, line, text in drawn)
            return _table_lines(Table("", texts("", "", ""), rows))
        case Scatter():
            return _fenced("\n".join(scatter(block, _PLOT_WIDTH)), "")


def _table_lines(table: Table) -> list[str]:
    if not table.rows:
        return [line for note in table.notes for line in (_line(note), "")][:-1]
    rules = ["---:" if heading.is_figure else ":---" for heading in table.headings]
    rows = []
    for cells in table.rows:
        row = []
        for cell in cells:
            # A space at the start of a cell is lost, one that does not break is kept.
            indent = "\u00a0\u00a0" * max(cell.level - 1, 0) + ("└\u00a0" if cell.level else "")
            times = f" ×{cell.times}" if cell.times > 1 else ""
            row.append(
                f"{indent}{code(cell.name)}{times}{escape_markdown(cell.text)}"
                if cell.name
                else escape_markdown(cell.text)
            )
        rows.append(row)
    head = [[escape_markdown(heading.title) for heading in table.headings], rules]
    lines = [f"| {' | '.join(row)} |" for row in [*head, *rows]]
    return [*lines, *(line for note in table.notes for line in ("", _line(note)))]


def _fenced(text: str, language: str = "python") -> list[str]:
    runs = [len(run) for run in re.findall("`+", text)]
    fence = "`" * max(3, *(length + 1 for length in runs), 0)
    return [f"{fence}{language}", *(visible(line) for line in text.split("\n")), fence]
