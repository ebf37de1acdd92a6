"""What a report says, before any format: a section is a title over facts, tables, texts, code and charts.

Formats render these blocks; none of them knows what a section is about.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torchgauge.report.layout import Heading


class Cell(NamedTuple):
    """`name` comes from the model, or from a file, and is shown as it is; `text` follows it."""

    text: str = ""
    name: str = ""
    level: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    headings: tuple[Heading, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """Name, value and remark; either of the last two may be empty."""

    rows: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class Text:
    text: str
    is_warning: bool = False


@dataclass(frozen=True, slots=True)
class Code:
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars from zero: label, value, and the value in words."""

    bars: tuple[tuple[str, float, str], ...]


Block = Table | Facts | Text | Code | Chart


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    blocks: tuple[Block, ...]
