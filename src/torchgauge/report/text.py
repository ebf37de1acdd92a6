"""The text report. The lines are the same for a terminal, a pipe and a file; only a terminal gets colours."""

from __future__ import annotations

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
from torchgauge.report.layout import Line, plain
from torchgauge.report.module_table import module_table
from torchgauge.report.options import Options
from torchgauge.report.pickled import pickled
from torchgauge.report.registry import renderer
from torchgauge.view import View

SECTIONS = (
    headline.title,
    headline.totals,
    measured_text.latency,
    memory_text.memory,
    energy_text.energy,
    thermal_text.thermal,
    carbon_text.carbon,
    module_table,
    measured_text.slow_modules,
    measured_text.slow_phases,
    measured_text.slow_ops,
    measured_text.residue,
    energy_text.hungry_modules,
    energy_text.hungry_ops,
    sweep_text.sweeps,
    pareto_text.pareto,
    sweep_text.thread_scaling,
    system_text.system,
    system_text.counters,
    sections.expensive_modules,
    sections.expensive_ops,
    sections.categories,
    sections.phases,
    sections.layers,
    weight_sections.weight_totals,
    weight_sections.weight_kinds,
    weight_findings.weight_outliers,
    weight_findings.weight_heat_maps,
    weight_findings.weight_operations,
    weight_findings.weight_advice,
    weight_findings.weight_failures,
    advice_text.advice,
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
