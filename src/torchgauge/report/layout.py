"""Lines of styled text, and tables that fit a width: text gives way, figures never do. A terminal shows the styles,
through rich; anything else gets plain text."""

from __future__ import annotations

import os
import re
import sys
import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TextIO

from torchgauge.units import inert_lines

# Wide enough for long module paths in a file; a terminal gives its own width.
PLAIN_WIDTH = 100
GAP = "  "
# A narrower name would say nothing: rather let the table be wider than the page.
MIN_TEXT_WIDTH = 12
# A blank that no line is broken at, and that no text to be shown contains.
_GLUE = "\0"
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|[kKMGTPmµn]?(?:i?B|s|W|J|Hz|FLOPs?|MACs?)\b))")


class Span(NamedTuple):
    text: str
    style: str = ""


Line = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Heading:
    """A column of a table. A figure is flush right and never cut. A page narrower than `min_width` leaves the column
    out. `is_name`: its texts come from the model or a file."""

    title: str
    is_figure: bool = True
    min_width: int = 0
    is_name: bool = False


def cell_width(text: str) -> int:
    """Columns the text takes in a terminal: East Asian wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(_char_width(char) for char in text)


def line_width(line: Line) -> int:
    return sum(cell_width(span.text) for span in line)


def shorten(text: str, width: int) -> str:
    """Cut out of the middle: both ends of a path say where it belongs."""
    if cell_width(text) <= width:
        return text
    tail = _fitting(text[::-1], (width - 1) // 2)[::-1]
    return _fitting(text, width - 1 - cell_width(tail)) + "…" + tail


def shorten_line(line: Line, width: int) -> Line:
    """Fit the line; the last span gives way first, and keeps a few characters while an earlier one can give too.

    Guides and counts (`×12`) stay whole: without them the line would mean something else.
    """
    spans = list(line)
    for floor in (6, 1):
        for index in reversed(range(len(spans))):
            excess = line_width(tuple(spans)) - width
            if excess > 0 and spans[index].style not in ("guide", "count"):
                room = max(cell_width(spans[index].text) - excess, floor)
                spans[index] = Span(shorten(spans[index].text, room), spans[index].style)
    return tuple(spans)


def lay_out(headings: Sequence[Heading], rows: Sequence[Sequence[Line]], width: int) -> list[Line]:
    """The lines of a table, the headings first."""
    table = [[(Span(heading.title, "head"),) for heading in headings], *rows]
    widths = [max(line_width(row[index]) for row in table) for index in range(len(headings))]
    excess = sum(widths) + len(GAP) * (len(headings) - 1) - width
    while excess > 0:
        flexible = [i for i, h in enumerate(headings) if not h.is_figure and widths[i] > MIN_TEXT_WIDTH]
        if not flexible:
            break
        widths[max(flexible, key=lambda index: widths[index])] -= 1
        excess -= 1
    lines: list[Line] = []
    for row in table:
        spans: list[Span] = []
        for heading, cell, room in zip(headings, row, widths, strict=True):
            fitted = shorten_line(cell, room)
            padding = Span(" " * (room - line_width(fitted)))
            spans += [Span(GAP)] if spans else []
            spans += [padding, *fitted] if heading.is_figure else [*fitted, padding]
        lines.append(tuple(spans))
    return lines


def wrap(text: str, width: int, *, lead: Line = (), style: str = "") -> list[Line]:
    """The text behind `lead`, its further lines indented as far; a figure stays with its unit."""
    indent = line_width(lead)
    room = max(width - indent, MIN_TEXT_WIDTH)
    pieces = [text]
    # Most texts fit, and textwrap takes its time to find that out.
    if len(text) > room or not text.isprintable() or text != text.strip():
        broken = textwrap.wrap(_BEFORE_UNIT.sub(_GLUE, text), room, break_on_hyphens=False)
        pieces = [piece.replace(_GLUE, " ") for piece in broken] or [""]
    first, *rest = [Span(piece, style) for piece in pieces]
    return [(*lead, first), *((Span(" " * indent), span) for span in rest)]


def plain(lines: Sequence[Line]) -> str:
    return inert_lines("\n".join("".join(span.text for span in line).rstrip() for line in lines) + "\n")


@lru_cache(4096)
def _char_width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _fitting(text: str, width: int) -> str:
    """The longest beginning of the text that takes at most `width` columns."""
    used = 0
    for index, char in enumerate(text):
        used += _char_width(char)
        if used > width:
            return text[:index]
    return text


STYLES = {
    "heading": "bold cyan",
    "head": "bold",
    "name": "",
    "count": "bold magenta",
    "figure": "",
    "guide": "dim",
    "dim": "dim",
    "warning": "yellow",
    "alarm": "bold red",
}


def terminal_width() -> int:
    """The width of the terminal, also where the output goes through a pager; a fixed one where there is none."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns):
        return int(columns)
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None and stream.isatty():
            return os.get_terminal_size(stream.fileno()).columns or PLAIN_WIDTH
    return PLAIN_WIDTH


def write_lines(lines: Sequence[Line], stream: TextIO) -> None:
    if stream.isatty():
        from rich.console import Console
        from rich.text import Text

        console = Console(file=stream, highlight=False, markup=False, emoji=False)
        for line in lines:
            # `Text`, not a string: names may hold what rich would take for markup.
            text = Text.assemble(*((span.text, STYLES.get(span.style, "")) for span in line))
            safe = inert_lines(text.plain)
            console.print(text if safe == text.plain else Text(safe), soft_wrap=True)
    else:
        stream.write(plain(lines))
