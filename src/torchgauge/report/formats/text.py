"""The text report. The lines are the same for a terminal, a pipe and a file; only a terminal gets colours."""

from __future__ import annotations

from collections.abc import Callable

from torchgauge.facts import View
from torchgauge.report import (
    advice_text,
    carbon_text,
    energy_text,
    headline,
    measured_text,
    memory_text,
    pareto_text,
    sections,
    sweep_text,
    system_text,
    thermal_text,
    weight_findings,
    weight_sections,
)
from torchgauge.report.content import sections_of
from torchgauge.report.layout import Line, plain, wrap
from torchgauge.report.module_table import module_table
from torchgauge.report.options import Options
from torchgauge.report.pickled import pickled
from torchgauge.report.registry import renderer
from torchgauge.report.sections import section_lines

Section = Callable[[View, Options], list[Line]]

# What fits a screen, then what was asked for besides: measured runs, the values of weights.
SECTIONS: tuple[Section, ...] = (
    headline.title,
    headline.totals,
    measured_text.latency,
    module_table,
    advice_text.advice,
    sections.notes,
    pickled,
    measured_text.slow_modules,
    measured_text.slow_phases,
    measured_text.slow_ops,
    measured_text.residue,
    memory_text.memory,
    energy_text.energy,
    energy_text.hungry_modules,
    energy_text.hungry_ops,
    thermal_text.thermal,
    carbon_text.carbon,
    sweep_text.sweeps,
    pareto_text.pareto,
    sweep_text.thread_scaling,
    system_text.system,
    system_text.counters,
    weight_sections.weight_totals,
    weight_sections.weight_kinds,
    weight_findings.weight_outliers,
    weight_findings.weight_heat_maps,
    weight_findings.weight_operations,
    weight_findings.weight_advice,
    weight_findings.weight_failures,
)


@renderer("text", suffix=".txt", contents="the report of the terminal, 100 columns wide")
def render_text(view: View, options: Options) -> str:
    return plain(report_lines(view, options))


def report_lines(view: View, options: Options) -> list[Line]:
    pieces = [section(view, options) for section in SECTIONS]
    pieces += [section_lines(section, options.width) for section in sections_of(view, options)]
    lines: list[Line] = []
    for piece in filter(None, (*pieces, more(view, options))):
        lines += [(), *piece] if lines else piece
    return lines


def more(view: View, options: Options) -> list[Line]:
    """Where the rest is."""
    if options.ops or not view.capture.has_code:
        return []
    return wrap("More: --ops (ops, distributions, coverage); -o report.html (everything)", options.width, style="dim")
