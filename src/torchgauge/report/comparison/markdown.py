"""A comparison as Markdown, for a pull request."""

from __future__ import annotations

from torchgauge.report.comparison.data import Compared
from torchgauge.report.comparison.tables import Table
from torchgauge.report.comparison.text import all_tables
from torchgauge.report.formats.markdown import prose
from torchgauge.report.options import Options


def render_markdown(compared: Compared, options: Options) -> str:
    return "\n\n".join(_table(table) for table in all_tables(compared, options)) + "\n"


def _table(table: Table) -> str:
    parts = [f"## {prose(table.title)}"]
    if table.headings:
        rules = ["---:" if heading.is_figure else ":---" for heading in table.headings]
        lines = [[prose(heading.title) for heading in table.headings], rules]
        lines += [[prose(cell) for cell in row] for row in table.rows]
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join([*parts, *(prose(note) for note in table.notes)])
