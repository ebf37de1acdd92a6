"""A comparison as lines of text that fit the width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchgauge.report.comparison.data import Compared
from torchgauge.report.comparison.module_table import module_table
from torchgauge.report.comparison.tables import (
    Table,
    circumstance_table,
    figure_table,
    side_table,
    structure_tables,
    weight_tables,
)
from torchgauge.report.layout import GAP, Heading, Line, Span, lay_out, line_width, plain, wrap
from torchgauge.report.options import Options
from torchgauge.report.sections import figure, heading


def all_tables(compared: Compared, options: Options) -> list[Table]:
    found = [
        side_table(compared),
        circumstance_table(compared),
        figure_table(compared),
        *structure_tables(compared),
        module_table(compared, options),
        *weight_tables(compared),
    ]
    return [table for table in found if table is not None]


def comparison_lines(compared: Compared, options: Options) -> list[Line]:
    lines: list[Line] = []
    for table in all_tables(compared, options):
        piece = table_lines(table, options.width)
        lines += [(), *piece] if lines else piece
    return lines


def render_text(compared: Compared, options: Options) -> str:
    return plain(comparison_lines(compared, options))


def table_lines(table: Table, width: int) -> list[Line]:
    lines = [heading(table.title)]
    for index, (headings, rows) in enumerate(fitting_parts(table, width)):
        lines += [()] if index else []
        lines += lay_out(headings, rows, width)
    return lines + [line for note in table.notes for line in wrap(note, width, style="dim")]


def fitting_parts(table: Table, width: int) -> Iterator[tuple[list[Heading], list[list[Line]]]]:
    """The table in as many parts, one below the other, as the width asks for."""
    if not table.headings:
        return
    columns = list(range(len(table.headings)))
    lead, rest = columns[: table.lead], columns[table.lead :]
    groups = [rest[start : start + table.group] for start in range(0, len(rest), table.group)]
    for chosen in _packed(table, lead, groups, width):
        headings = [table.headings[column] for column in chosen]
        yield headings, [[_cell(table, row, column) for column in chosen] for row in table.rows]


def _packed(table: Table, lead: list[int], groups: list[list[int]], width: int) -> Iterator[list[int]]:
    chosen = list(lead)
    for group in groups:
        if chosen != lead and _least_width(table, [*chosen, *group]) > width:
            yield chosen
            chosen = list(lead)
        chosen += group
    yield chosen


# What a name needs to say which it is; the layout cuts it no shorter than it must.
_NAME = 32


def _least_width(table: Table, columns: Sequence[int]) -> int:
    return sum(_column_width(table, column) for column in columns) + len(GAP) * (len(columns) - 1)


def _column_width(table: Table, column: int) -> int:
    natural = max(
        line_width(_cell(table, row, column)) for row in (tuple(h.title for h in table.headings), *table.rows)
    )
    return natural if table.headings[column].is_figure else min(natural, _NAME)


def _cell(table: Table, row: Sequence[str], column: int) -> Line:
    text = row[column]
    return figure(text) if table.headings[column].is_figure else (Span(text),)
