"""The figures that are read first, as facts: for every format that has one place for all of them."""

from __future__ import annotations

from torchgauge.facts import View
from torchgauge.facts.figures import ESTIMATED
from torchgauge.report.energy_text import about, range_text
from torchgauge.report.headline import input_facts, run_text, total_facts
from torchgauge.report.origin import Fact, origin_facts
from torchgauge.units import format_exact, format_joules, format_seconds


def summary_facts(view: View) -> list[Fact]:
    """Name, value, remark; the texts are visible."""
    return [
        ("Run", "", run_text(view)),
        *input_facts(view),
        *origin_facts(view),
        *total_facts(view),
        *_time(view),
        *_energy(view),
    ]


def _time(view: View) -> list[Fact]:
    latency = view.measurements.get("latency") if view.measurements else None
    if not latency:
        return []
    runs = latency["runs"]
    of = "one undisturbed run" if runs == 1 else f"the median of {format_exact(runs)} undisturbed runs"
    return [("Latency", format_seconds(latency["median_s"]), f"measured: {of}")]


def _energy(view: View) -> list[Fact]:
    if view.totals.energy_j is not None:
        return [("Energy", format_joules(view.totals.energy_j), "measured, of one run")]
    figures = view.energy
    if figures is None or figures["origin"] != ESTIMATED:
        return []
    joules = figures["estimated_joules"]
    return [("Energy, ESTIMATED", about(joules), f"{range_text(joules)}: no meter measured it")]
