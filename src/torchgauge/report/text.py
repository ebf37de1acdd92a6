"""The text report. The lines are the same for a terminal, a pipe and a file; only a terminal gets colours."""

from __future__ import annotations

from torchgauge.report import headline, sections
from torchgauge.report.layout import Line, plain
from torchgauge.report.module_table import module_table
from torchgauge.report.options import Options
from torchgauge.report.pickled import pickled
from torchgauge.report.registry import renderer
from torchgauge.view import View

SECTIONS = (
    headline.title,
    headline.totals,
    module_table,
    sections.expensive_modules,
    sections.expensive_ops,
    sections.categories,
    sections.phases,
    sections.layers,
    sections.covered,
    pickled,
    sections.notes,
)


@renderer("text", suffix=".txt")
def render_text(view: View, options: Options) -> str:
    return plain(report_lines(view, options))


def report_lines(view: View, options: Options) -> list[Line]:
    lines: list[Line] = []
    for section in SECTIONS:
        piece = section(view, options)
        if piece:
            lines += [(), *piece] if lines else piece
    return lines
