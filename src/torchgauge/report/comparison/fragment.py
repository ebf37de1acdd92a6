"""A comparison in a notebook."""

from __future__ import annotations

from html import escape

from torchgauge.report.comparison.data import Compared
from torchgauge.report.comparison.tables import Table
from torchgauge.report.comparison.text import all_tables
from torchgauge.report.options import Options

_TABLE = 'style="border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.4em 0"'
_ALIGNED = {True: 'style="text-align:right;padding:.1em .8em"', False: 'style="text-align:left;padding:.1em .8em"'}


def render_fragment(compared: Compared, options: Options) -> str:
    return "\n".join(["<div>", *(_table(table) for table in all_tables(compared, options)), "</div>"])


def _table(table: Table) -> str:
    parts = [f"<b>{escape(table.title)}</b>"]
    if table.headings:
        head = "".join(_cell("th", heading.title, heading.is_figure) for heading in table.headings)
        aligned = [heading.is_figure for heading in table.headings]
        body = ["".join(_cell("td", *cell) for cell in zip(row, aligned, strict=True)) for row in table.rows]
        rows = "\n".join(f"<tr>{row}</tr>" for row in [head, *body])
        parts.append(f"<table {_TABLE}>\n{rows}\n</table>")
    return "\n".join([*parts, *(f'<div style="opacity:.65">{escape(note)}</div>' for note in table.notes)])


def _cell(tag: str, text: str, is_figure: bool) -> str:
    return f"<{tag} {_ALIGNED[is_figure]}>{escape(text)}</{tag}>"
