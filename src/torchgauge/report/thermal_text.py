"""How warm the device got while its energy was measured, and what that did to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torchgauge.facts import View
from torchgauge.report.bars import spark
from torchgauge.report.escape import visible
from torchgauge.report.headline import fact_lines
from torchgauge.report.layout import Line
from torchgauge.report.options import Options
from torchgauge.report.origin import Fact
from torchgauge.report.sections import heading
from torchgauge.units import format_count, format_joules, format_percent, format_value

_SPARK_WIDTH = 40


def thermal(view: View, options: Options) -> list[Line]:
    figures = (view.energy.get("thermal") if view.energy else None) or {}
    facts = [
        *_course("Temperature", figures, "temperature_c", _degrees),
        *_course("Clock", figures, "clock_hz", lambda value: f"{format_count(value)}Hz"),
        *_held_back(figures),
        *_drift(figures.get("drift") or {}),
    ]
    return (
        [heading("Temperature and clocks, while energy was measured"), *fact_lines(facts, options.width)]
        if facts
        else []
    )


def _degrees(value: float) -> str:
    return f"{format_value(value)} °C"


def _course(name: str, figures: Mapping[str, Any], key: str, form: Callable[[float], str]) -> list[Fact]:
    extent = figures.get(key)
    if not extent:
        return []
    values = ((figures.get("series") or {}).get(key) or {}).get("values") or []
    drawn = spark([value or 0.0 for value in values], extent["max"], _SPARK_WIDTH) if len(values) > 1 else ""
    text = f"{form(extent['first'])} to {form(extent['last'])}, {form(extent['min'])} to {form(extent['max'])} over all"
    return [(name, "", f"{text} {drawn}".rstrip())]


def _held_back(figures: Mapping[str, Any]) -> list[Fact]:
    reasons = figures.get("throttled")
    if reasons is None:
        return []
    text = ", ".join(
        f"{reason.replace('_', ' ')} {format_percent(share)} of the time" for reason, share in reasons.items()
    )
    return [("Held back", "", visible(text) or "never")]


def _drift(drift: Mapping[str, float | None]) -> list[Fact]:
    change, slope = drift.get("first_to_last"), drift.get("joules_per_degree")
    if change is None:
        return []
    note = "of energy, from the first trial to the last"
    if slope is not None:
        note += f"; {format_joules(slope)} per °C"
    return [("Drift", f"{'+' if change > 0 else ''}{format_percent(change)}", note)]
