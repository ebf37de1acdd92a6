"""Styled lines for a terminal, through rich; plain text for anything else."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TextIO

from torchgauge.report.layout import Line, plain
from torchgauge.report.options import PLAIN_WIDTH

STYLES = {
    "heading": "bold cyan",
    "head": "bold",
    "name": "",
    "count": "bold magenta",
    "figure": "",
    "guide": "dim",
    "dim": "dim",
    "warning": "yellow",
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
            console.print(Text.assemble(*((span.text, STYLES.get(span.style, "")) for span in line)), soft_wrap=True)
    else:
        stream.write(plain(lines))
