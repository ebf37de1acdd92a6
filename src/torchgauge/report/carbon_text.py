"""Carbon in the text report: grams, and all they rest on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchgauge.facts import View
from torchgauge.report.escape import visible
from torchgauge.report.headline import fact_lines
from torchgauge.report.layout import Line
from torchgauge.report.options import Options
from torchgauge.report.origin import Fact
from torchgauge.report.sections import heading
from torchgauge.units import format_grams, format_value

_AMOUNTS = (("Per 1,000 samples", "grams_per_1000"), ("Per year", "grams_per_year"))


def carbon(view: View, options: Options) -> list[Line]:
    found = view.energy.get("carbon") if view.energy else None
    if not found:
        return []
    facts = [*(fact for name, key in _AMOUNTS for fact in _amount(name, key, found)), *_terms(found)]
    estimated = any(key.startswith("estimated_") for key in found)
    title = "Carbon dioxide equivalents" + (", ESTIMATED" if estimated else "")
    return [heading(title), *fact_lines(facts, options.width)]


def _amount(name: str, key: str, found: Mapping[str, Any]) -> list[Fact]:
    at = f"at {format_value(found['rate_per_s'])} per second without a stop" if key == "grams_per_year" else ""
    if found.get(key) is not None:
        return [(name, format_grams(found[key]), at)]
    spread = found.get(f"estimated_{key}")
    if not spread:
        return []
    within = f"between {format_grams(spread['low'])} and {format_grams(spread['high'])}"
    return [(name, f"≈ {format_grams(spread['value'])}", f"{within}{', ' if at else ''}{at}")]


def _terms(found: Mapping[str, Any]) -> list[Fact]:
    year = f", {found['year']}" if found.get("year") else ""
    grid = f"{format_value(found['g_per_kwh'])} g per kWh: {found['place']}{year} ({found['source']})"
    return [
        ("Grid", "", visible(grid + (f"; {found['assumed']}" if found.get("assumed") else ""))),
        ("PUE", format_value(found["pue"]), "the data centre's overhead"),
        ("Boundary", "", visible(found["boundary"])),
    ]
