"""Everything in one text file: every part of the analysis under its heading, every parameter and every node.

A part that has nothing says why, and how to get it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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
from torchgauge.report.content import breakdown, sections_of
from torchgauge.report.escape import visible
from torchgauge.report.layout import Line, Span, plain, wrap
from torchgauge.report.model import Section as Content
from torchgauge.report.module_table import module_table
from torchgauge.report.node_detail import node_details
from torchgauge.report.options import Options
from torchgauge.report.origin import Fact
from torchgauge.report.parameter_detail import parameter_details
from torchgauge.report.pickled import pickled
from torchgauge.report.registry import renderer
from torchgauge.report.sections import section_lines
from torchgauge.report.summary import summary_facts
from torchgauge.units import format_bytes, format_exact

Section = Callable[[View, Options], list[Line]]


# Not what fits a page: the module tree is shown whole, equal blocks once.
DEEPEST = 100


@dataclass(frozen=True, slots=True)
class Part:
    """`absent` is what is said where no section has anything."""

    title: str
    sections: tuple[Section, ...]
    absent: str = ""


@renderer(
    "comprehensive",
    suffix="comprehensive_model_analysis.txt",
    contents="the full text report: every parameter and every op",
    scans=("comprehensive_model_analysis.txt",),
)
def render_comprehensive(view: View, options: Options) -> str:
    return plain(comprehensive_lines(view, options))


def comprehensive_lines(view: View, options: Options) -> list[Line]:
    options = options if options.depth is not None else replace(options, depth=DEEPEST)
    lines: list[Line] = [(Span("COMPREHENSIVE MODEL ANALYSIS", "heading"),)]
    for part in PARTS:
        pieces = [piece for section in part.sections if (piece := section(view, options))]
        lines += [(), *_title(part.title, options)]
        lines += _apart(pieces) if pieces else wrap(part.absent, options.width, style="dim")
    # What `--ops` adds is among the parts already.
    others = [section_lines(section, options.width) for section in sections_of(view, replace(options, ops=False))]
    return [*lines, (), *_title("DETAILS", options), *_apart(others)] if others else lines


def _told(make: Callable[[View], Content | None]) -> Section:
    def lines(view: View, options: Options) -> list[Line]:
        section = make(view)
        return [] if section is None else section_lines(section, options.width)

    return lines


def _title(text: str, options: Options) -> list[Line]:
    rule = "=" * min(options.width, 80)
    return [(Span(rule, "dim"),), (Span(text, "heading"),), (Span(rule, "dim"),)]


def _apart(pieces: Sequence[list[Line]]) -> list[Line]:
    return [line for number, piece in enumerate(pieces) for line in ([(), *piece] if number else piece)]


def _summary(view: View, options: Options) -> list[Line]:
    kind, name = headline.model_kind(view), view.capture.target.name
    model: Fact = ("Model", visible(kind), visible(name) if name != kind else "")
    return headline.fact_lines([model, *summary_facts(view)], options.width)


def _counts(view: View, options: Options) -> list[Line]:
    modules, totals = view.capture.modules, view.totals
    facts: list[Fact] = [("Modules", format_exact(len(modules)), "")]
    if view.capture.has_code:
        facts.append(("Nodes", format_exact(totals.ops), f"op calls, {format_exact(totals.uncounted_ops)} uncounted"))
    facts.append(("Parameter tensors", format_exact(sum(not param.is_buffer for param in view.capture.params)), ""))
    facts.append(("Buffers", format_exact(sum(param.is_buffer for param in view.capture.params)), ""))
    return headline.fact_lines(facts, options.width)


def _parameters(view: View, options: Options) -> list[Line]:
    totals = view.totals
    facts: list[Fact] = [
        ("Total parameters", format_exact(totals.params), headline.parameter_note(view)),
        ("Parameter memory", format_bytes(totals.param_bytes), f"{format_exact(totals.param_bytes)} bytes"),
    ]
    lines = headline.fact_lines(facts, options.width)
    if view.weight_summary is None:
        text = "The values were not read: --weights (weights=True) gives their statistics."
        lines += wrap(text, options.width, style="dim")
    return lines


def _environment(view: View, options: Options) -> list[Line]:
    found = view.capture.environment
    memory = f", {format_bytes(found.memory_bytes)} of memory" if found.memory_bytes else ""
    facts: list[Fact] = [
        ("Made", visible(view.capture.created), f"by torchgauge {visible(view.capture.version)}"),
        ("Machine", "", visible(f"{found.platform}, {found.cpu}, {format_exact(found.cpu_cores)} cores{memory}")),
        ("Software", "", visible(f"Python {found.python}, torch {found.torch}, {found.threads} threads")),
    ]
    if found.packages:
        facts.append(("Packages", "", visible(", ".join(f"{name} {is_at}" for name, is_at in found.packages.items()))))
    return headline.fact_lines(facts, options.width)


NO_CODE = "There was no code to run, only weights: --as TARGET names the code, and its work is then counted."
NOT_CONSUMED = "Not asked for: --inference --profile measures the energy where the device has a meter, or estimates it."
NOT_MEASURED = "Nothing was measured: --inference times the model on this machine, --profile its ops too."

PARTS = (
    Part("EXECUTIVE SUMMARY", (_summary,)),
    Part("ARCHITECTURE", (_counts, module_table, _told(breakdown.layers))),
    Part(
        "PARAMETER ANALYSIS",
        (
            _parameters,
            weight_sections.weight_totals,
            weight_sections.weight_kinds,
            weight_sections.weight_places,
            weight_sections.weight_hardest,
            weight_sections.weight_structures,
            weight_findings.weight_outliers,
            weight_findings.weight_heat_maps,
            weight_findings.weight_packings,
            weight_findings.weight_failures,
            pickled,
        ),
    ),
    Part(
        "COMPUTATIONAL ANALYSIS",
        (
            _told(breakdown.categories),
            _told(breakdown.phases),
            _told(breakdown.expensive_modules),
            _told(breakdown.expensive_ops),
            _told(breakdown.covered),
        ),
        NO_CODE,
    ),
    Part(
        "ENERGY ANALYSIS",
        (
            energy_text.energy,
            thermal_text.thermal,
            carbon_text.carbon,
            energy_text.hungry_modules,
            energy_text.hungry_ops,
            pareto_text.pareto,
        ),
        NOT_CONSUMED,
    ),
    Part(
        "PERFORMANCE PROFILE",
        (
            measured_text.latency,
            memory_text.memory,
            measured_text.slow_modules,
            measured_text.slow_phases,
            measured_text.slow_ops,
            measured_text.residue,
            sweep_text.sweeps,
            sweep_text.thread_scaling,
            system_text.system,
            system_text.counters,
        ),
        NOT_MEASURED,
    ),
    Part("PARAMETERS, ONE BY ONE", (parameter_details,), "The model has no parameters."),
    Part("NODES, ONE BY ONE", (node_details,), NO_CODE),
    Part(
        "RECOMMENDATIONS",
        (advice_text.every_advice, weight_findings.weight_operations, weight_findings.weight_advice),
        "No rule found anything to recommend.",
    ),
    Part("ENVIRONMENT AND METHOD", (_environment, sections.notes)),
)
