"""The content of a report before any format: sections, each a title over blocks.

Formats render blocks; none of them knows what a section is about. Text in a block may hold names from a model or a
file: each format escapes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from torchgauge.report.layout import Heading


class Topic(IntEnum):
    """The order of sections in a report; the comprehensive report makes chapters of them."""

    FINDINGS = -1
    SUMMARY = 0
    CHANGES = 1
    MODULES = 2
    ADVICE = 3
    NOTES = 4
    TIME = 5
    MEMORY = 6
    ENERGY = 7
    SWEEP = 8
    SYSTEM = 9
    WEIGHTS = 10
    OPS = 11
    LAYERS = 12
    OTHER = 13
    PARAMETERS = 14
    NODES = 15
    ENVIRONMENT = 16


class Cell(NamedTuple):
    """`name` comes from the model or a file; `times` (of equal things) and `text` follow it. In a tree `level` is the
    depth and `guide` the lines that lead there."""

    text: str = ""
    name: str = ""
    level: int = 0
    guide: str = ""
    times: int = 1
    is_warning: bool = False

    @property
    def plain(self) -> str:
        """Everything but the guide."""
        return f"{self.name}{f' ×{self.times}' if self.times > 1 else ''}{self.text}"


class Bars(NamedTuple):
    """A bar for each row of a table, drawn where there is room."""

    title: str
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table that is too wide for a page is cut into parts: its first `lead` columns are on each, the others come in
    groups of `group`; 0: it is never cut."""

    title: str
    headings: tuple[Heading, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    bars: Bars | None = None
    lead: int = 1
    group: int = 0


# Name, value and remark; either of the last two may be empty.
Fact = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Facts:
    rows: Sequence[Fact]

    def as_table(self) -> Table:
        """For formats that have only tables."""
        headings = (*texts("Figure"), *figures("Value"), *texts("Remark"))
        return Table("", headings, tuple(tuple(map(Cell, row)) for row in self.rows))


@dataclass(frozen=True, slots=True)
class Text:
    text: str
    is_warning: bool = False
    is_alarm: bool = False
    is_remark: bool = False


class Item(NamedTuple):
    """An entry of a list: a sentence behind a `name` from the model or a file, facts about it (label and text; the
    label may be empty), code to paste, and facts `after` it."""

    text: str
    facts: Sequence[tuple[str, str]] = ()
    code: str = ""
    name: str = ""
    after: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Listing:
    """`mark` is "-", "1." or empty for separate entries, each under its own line. A terminal cuts the text before an
    entry's code after `max_lines`; 0: never."""

    items: Sequence[Item]
    mark: str = "-"
    max_lines: int = 0
    is_warning: bool = False
    is_remark: bool = False


@dataclass(frozen=True, slots=True)
class Code:
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars from zero: label, value, and the value in words."""

    bars: tuple[tuple[str, float, str], ...]

    def as_table(self) -> Table:
        """For formats that cannot draw."""
        rows = tuple((Cell(name=label), Cell(text)) for label, _, text in self.bars)
        return Table("", (*texts(""), *figures("")), rows)


@dataclass(frozen=True, slots=True)
class Course:
    """Values over time or over the run: label, values and a remark; on one scale that ends at `top`, without it each
    on its own."""

    lines: tuple[tuple[str, tuple[float, ...], str], ...]
    top: float | None = None


class Point(NamedTuple):
    x: float
    y: float
    is_marked: bool = False


@dataclass(frozen=True, slots=True)
class Scatter:
    """Points between zero and the largest of each axis, which are given in words. A table next to it has the values:
    a format that cannot draw leaves it out."""

    points: tuple[Point, ...]
    x_end: str
    y_end: str


Block = Table | Facts | Text | Listing | Code | Chart | Course | Scatter


@dataclass(frozen=True, slots=True)
class Section:
    """`page_part` names the part of the HTML page that shows the same, interactively; without it the page shows the
    blocks. `name` is what LaTeX labels are made of."""

    title: str
    blocks: tuple[Block, ...]
    topic: Topic = Topic.OTHER
    page_part: str = ""
    name: str = ""

    @property
    def label(self) -> str:
        return self.name or re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


# The cells of a row, mostly texts alone.
Cells = Sequence[str | Cell]


def names(*titles: str) -> tuple[Heading, ...]:
    """Columns of names that come from the model or a file."""
    return tuple(Heading(title, is_figure=False, is_name=True) for title in titles)


def texts(*titles: str) -> tuple[Heading, ...]:
    """Columns of text."""
    return tuple(Heading(title, is_figure=False) for title in titles)


def figures(*titles: str, min_width: int = 0) -> tuple[Heading, ...]:
    """Columns of figures; a page narrower than `min_width` leaves them out."""
    return tuple(Heading(title, min_width=min_width) for title in titles)


def table(headings: tuple[Heading, ...], rows: Sequence[Cells], notes: Sequence[str] = (), **layout: Any) -> Table:
    """A table from the texts of its cells; `layout` are the other members of `Table`."""
    cells = tuple(
        tuple(
            cell if isinstance(cell, Cell) else Cell(name=cell) if heading.is_name else Cell(cell)
            for heading, cell in zip(headings, row, strict=True)
        )
        for row in rows
    )
    return Table("", headings, cells, tuple(notes), **layout)


def table_section(
    title: str, headings: tuple[Heading, ...], rows: Sequence[Cells], notes: Sequence[str] = (), **place: Any
) -> Iterator[Section]:
    """A section with one table; none where the table has no rows. `place` are the other members of `Section`."""
    if rows:
        yield Section(title, (table(headings, rows, notes),), **place)


def more(count: int, what: str = "") -> tuple[str, ...]:
    """The note below a table that leaves some rows out."""
    return (f"and {count:,} more {what if count > 1 else ''}".rstrip(),) if count > 0 else ()


def notes(found: Iterable[str], *, is_warning: bool = False, is_remark: bool = False) -> tuple[Block, ...]:
    """Sentences as a list; nothing where there are none."""
    items = tuple(Item(text) for text in found)
    return (Listing(items, is_warning=is_warning, is_remark=is_remark),) if items else ()
