"""Energy in the text report. An estimate has another heading, a sign before each figure, and its range."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from torchgauge.facts import View
from torchgauge.report.bars import spark
from torchgauge.report.energy_figures import is_estimated
from torchgauge.report.escape import visible
from torchgauge.report.headline import fact_lines
from torchgauge.report.layout import Heading, Line, Span, lay_out, wrap
from torchgauge.report.options import Options
from torchgauge.report.origin import Fact
from torchgauge.report.ranking import BY_ENERGY, THE_MODEL, rate, top_modules, top_ops
from torchgauge.report.sections import RANKED, figure, heading, shapes_text, text_cell
from torchgauge.units import format_count, format_exact, format_joules, format_percent, format_seconds, format_watts

ABOUT = "≈ "
_SPARK_WIDTH = 60


def energy(view: View, options: Options) -> list[Line]:
    figures = view.energy
    if figures is None:
        return []
    estimated = is_estimated(view)
    title = "Energy of one run, ESTIMATED: no meter measured it" if estimated else "Energy of one run"
    facts = _estimated_facts(figures) if estimated else _measured_facts(figures)
    lines = [heading(title), *(fact_lines(facts, options.width) if facts else [])]
    if figures.get("reason"):
        text = f"Not measured: {figures['reason']}"
        lines += wrap(visible(text), options.width, lead=(Span("- "),), style="warning")
    for note in [*(figures.get("notes") or ()), *((figures.get("estimated_from") or {}).get("notes") or ())]:
        lines += wrap(visible(str(note)), options.width, lead=(Span("- "),), style="dim")
    return lines


def _measured_facts(figures: Mapping[str, Any]) -> list[Fact]:
    if figures.get("joules") is None:
        return []
    facts: list[Fact] = [("Energy", format_joules(figures["joules"]), _interval_note(figures))]
    if figures.get("net_joules") is not None:
        idle = f"above the {format_watts(figures.get('idle_watts'))} it takes at rest"
        facts.append(("Net", format_joules(figures["net_joules"]), idle))
    facts += [
        (name, format_joules(figures[key]), "")
        for name, key in (("Per sample", "joules_per_sample"), ("Per token", "joules_per_token"))
        if figures.get(key) is not None and figures[key] != figures["joules"]
    ]
    facts += _power_facts(figures)
    if figures.get("flops_per_joule") is not None:
        facts.append(("Efficiency", f"{format_count(figures['flops_per_joule'])}FLOP/J", _best_note(figures)))
    if meters := [meter for meter in figures.get("meters") or () if meter.get("available", True)]:
        names = ", ".join(str(meter["name"]) for meter in meters)
        facts.append(("Meter", "", visible(f"{names}; {figures.get('boundary')}")))
    return facts


def _interval_note(figures: Mapping[str, Any]) -> str:
    trials, window = figures.get("trials"), figures.get("window_s")
    over = f"{format_exact(trials)} trials, {format_seconds(window)}" if trials and window else "measured"
    if not figures.get("ci95_j"):
        return over
    low, high = figures["ci95_j"]
    return f"mean of {over} (95 %: {format_joules(low)} to {format_joules(high)})"


def _power_facts(figures: Mapping[str, Any]) -> list[Fact]:
    facts: list[Fact] = []
    if figures.get("watts_mean") is not None:
        limit = figures.get("power_limit_watts")
        note = f"mean; {format_watts(figures.get('watts_peak'))} at most"
        facts.append(
            ("Power", format_watts(figures["watts_mean"]), note + (f", limit {format_watts(limit)}" if limit else ""))
        )
    values = _watts_over_time(figures)
    if len(values) > 1:
        facts.append(("Over time", "", f"{spark(values, max(values), _SPARK_WIDTH)} up to {format_watts(max(values))}"))
    return facts


def _watts_over_time(figures: Mapping[str, Any]) -> list[float]:
    series = ((figures.get("thermal") or {}).get("series") or {}).get("power_w") or {}
    return [value for value in series.get("values") or () if value is not None]


def _best_note(figures: Mapping[str, Any]) -> str:
    best = figures.get("device_best")
    if not best:
        return "the device's best is not known"
    share = format_percent(figures["flops_per_joule"] / best["flops_per_joule"])
    return visible(f"{share} of the device's best in {best['dtype']}: {best['source']}")


def _estimated_facts(figures: Mapping[str, Any]) -> list[Fact]:
    joules, basis = figures["estimated_joules"], figures["estimated_from"]
    facts: list[Fact] = [("Energy", about(joules), range_text(joules))]
    each = figures["estimated_joules_per_sample"]
    if each != joules:
        facts.append(("Per sample", about(each), range_text(each)))
    if watts := figures.get("estimated_watts_mean"):
        within = f"between {format_watts(watts['low'])} and {format_watts(watts['high'])}"
        facts.append(("Power", ABOUT + format_watts(watts["value"]), within))
    if rate := figures.get("estimated_flops_per_joule"):
        within = f"between {format_count(rate['low'])} and {format_count(rate['high'])}FLOP/J"
        facts.append(("Efficiency", f"{ABOUT}{format_count(rate['value'])}FLOP/J", within))
    work = f"operations and bytes alone {range_text(basis['work_joules'])}"
    if basis["watts"]:
        low, high = format_watts(basis["watts"]["low"]), format_watts(basis["watts"]["high"])
        work += f"; the device takes {low} to {high}"
    facts.append(("From", "", visible(f"{basis['technology']}: {work}")))
    facts.append(("Sources", "", visible(", ".join(_publications(basis["sources"])))))
    return facts


def _publications(sources: Sequence[str]) -> list[str]:
    """The names alone; what was taken from each is in the data."""
    return list(dict.fromkeys(re.split("[:,;]", source)[0] for source in sources))


def about(joules: Mapping[str, float]) -> str:
    return ABOUT + format_joules(joules["value"])


def range_text(joules: Mapping[str, float]) -> str:
    return f"between {format_joules(joules['low'])} and {format_joules(joules['high'])}"


def hungry_modules(view: View, options: Options) -> list[Line]:
    ranked = top_modules(view, BY_ENERGY, RANKED)
    if not ranked:
        return []
    sign = _sign(view)
    headings = [Heading("Module", is_figure=False), Heading("Type", is_figure=False)]
    headings += [Heading(title) for title in ("×", _column(view), "share", *_rate_title(view))]
    rows = [
        [
            text_cell(entry.paths or THE_MODEL),
            text_cell(entry.kind, "dim"),
            figure(format_exact(entry.count)),
            figure(sign + format_joules(entry.value)),
            figure(format_percent(entry.share)),
            *(figure(format_count(rate(entry, entry.flops))) for _ in _rate_title(view)),
        ]
        for entry in ranked
    ]
    return [heading(_title("modules, by their own energy", view)), *lay_out(headings, rows, options.width)]


def hungry_ops(view: View, options: Options) -> list[Line]:
    ranked = top_ops(view, BY_ENERGY, RANKED)
    if not ranked:
        return []
    sign = _sign(view)
    headings = [Heading("Op", is_figure=False)]
    headings += [Heading(title) for title in ("×", _column(view), "share", *_rate_title(view))]
    rows = [
        [
            (Span(f"{visible(entry.op)} ", "name"), Span(shapes_text(entry.input_shapes, entry.output_shapes), "dim")),
            figure(format_exact(entry.calls)),
            figure(sign + format_joules(entry.value)),
            figure(format_percent(entry.share)),
            *(figure(format_count(rate(entry, entry.flops))) for _ in _rate_title(view)),
        ]
        for entry in ranked
    ]
    lines = [heading(_title("ops, equal calls together", view)), *lay_out(headings, rows, options.width)]
    return lines + _parts_note(view, options)


def _parts_note(view: View, options: Options) -> list[Line]:
    figures: Mapping[str, Any] = view.energy or {}
    if is_estimated(view):
        spread = figures["estimated_joules"]
        times = format_count(spread["high"] / spread["low"]) if spread["low"] else "?"
        text = f"Estimated: shares of the middle of a range whose ends are {times} times apart."
        return wrap(text, options.width, style="dim")
    parts = figures.get("attribution") or {}
    if parts.get("explained_share") is None:
        return []
    text = (
        f"The parts add up to {format_percent(parts['explained_share'])} of the whole; the difference is "
        f"{format_joules(parts.get('residue_j'))} ({parts.get('method')})."
    )
    return wrap(visible(text), options.width, style="dim")


def _rate_title(view: View) -> tuple[str, ...]:
    """Operations over an estimate of what they take would only repeat what was assumed."""
    return () if is_estimated(view) else ("FLOP/J",)


def _sign(view: View) -> str:
    return ABOUT if is_estimated(view) else ""


def _column(view: View) -> str:
    return "Estimated" if is_estimated(view) else "Energy"


def _title(rest: str, view: View) -> str:
    return f"Most energy-hungry {rest}{', ESTIMATED' if is_estimated(view) else ''}"
