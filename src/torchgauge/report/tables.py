"""The tables of a report as data, for formats that set them out by themselves: cells of text, some of them names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchgauge.facts import View
from torchgauge.report.columns import COLUMNS, columns_of
from torchgauge.report.content.breakdown import UNKNOWN, op_rows
from torchgauge.report.distribution import by_category
from torchgauge.report.layout import Heading
from torchgauge.report.model import Cell, Table
from torchgauge.report.module_table import FOLDED
from torchgauge.report.options import Options
from torchgauge.report.outline import OutlineLine, outline
from torchgauge.report.summary import summary_facts
from torchgauge.report.weight_statistics import places
from torchgauge.units import format_bytes, format_count, format_decibels, format_exact, format_percent, format_value

OPS, PLACES = 20, 40


FACTS = (Heading("Figure", is_figure=False), Heading("Value"), Heading("Remark", is_figure=False))


def summary_table(view: View) -> Table:
    rows = tuple((Cell(name), Cell(value), Cell(note)) for name, value, note in summary_facts(view))
    return Table("Summary", FACTS, rows)


def module_table(view: View, options: Options) -> Table:
    options = replace(options, columns=columns_of(view, options.columns))
    lines = outline(view, options)
    headings = [Heading("Module", is_figure=False)]
    headings += [Heading(COLUMNS[key].title, COLUMNS[key].is_figure) for key in options.columns]
    rows = [(_module_cell(line), *_cells(line, options)) for line in lines]
    notes = (FOLDED,) if any(line.count > 1 for line in lines) else ()
    return Table("Modules", tuple(headings), tuple(rows), notes)


def _module_cell(line: OutlineLine) -> Cell:
    times = f" ×{line.count}" if line.count > 1 else ""
    if not line.name:
        return Cell(name=line.kind or "(root)")
    return Cell(f"{times} {line.kind}{line.remark}", line.name, len(line.guide) // 3)


def _cells(line: OutlineLine, options: Options) -> list[Cell]:
    return [Cell(COLUMNS[key].form(line.row[key])) for key in options.columns]


def op_table(view: View) -> Table:
    return Table("Most expensive ops, equal calls together", *op_rows(view, OPS))


def _work(is_known: bool, counts: Sequence[int], share: float) -> list[Cell]:
    """What has no formula is unknown, not zero."""
    texts = [*map(format_count, counts), format_percent(share)]
    return [Cell(text if is_known else UNKNOWN) for text in texts]


def category_table(view: View) -> Table:
    headings = (
        Heading("Kind", is_figure=False), Heading("Ops"), Heading("MACs"), Heading("FLOPs"), Heading("Share"),
        Heading("Bytes moved"),
    )  # fmt: skip
    rows = tuple(
        (
            Cell(entry.name),
            Cell(format_exact(entry.ops)),
            *_work(entry.uncounted < entry.ops, (entry.macs, entry.flops), entry.flops_share),
            Cell(format_bytes(entry.bytes_moved)),
        )
        for entry in by_category(view)
    )
    return Table("Distribution by kind of op", headings, rows)


def weight_table(view: View) -> Table:
    headings = (
        Heading("Tensor", is_figure=False), Heading("×"), Heading("Bytes"), Heading("Std"), Heading("Abs. max"),
        Heading("Zeros"), Heading("Prunable"), Heading("int8"), Heading("30 dB"),
    )  # fmt: skip
    found = places(view)
    rows = tuple(
        (
            Cell(name=place.pattern),
            Cell(format_exact(place.count)),
            Cell(format_bytes(place.nbytes)),
            Cell(format_value(place.std)),
            Cell(format_value(place.abs_max)),
            Cell(format_percent(place.sparsity)),
            Cell(format_percent(place.removable)),
            Cell(format_decibels(place.int8_db)),
            Cell(place.smallest_30db),
        )
        for place in found[:PLACES]
    )
    more = (f"and {format_exact(len(found) - PLACES)} more",) if len(found) > PLACES else ()
    return Table("Values of the largest weights, siblings together", headings, rows, more)
