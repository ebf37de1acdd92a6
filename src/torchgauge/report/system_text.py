"""What the machine did during the runs, in the text report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torchgauge.facts import View
from torchgauge.report.escape import visible
from torchgauge.report.headline import fact_lines
from torchgauge.report.layout import Heading, Line, Span, lay_out, wrap
from torchgauge.report.measurements import measured_member
from torchgauge.report.options import Options
from torchgauge.report.origin import Fact
from torchgauge.report.sections import figure, heading, text_cell
from torchgauge.units import format_bytes, format_count, format_percent, format_value

_FORMS: Mapping[str, Callable[[float], str]] = {
    "share": format_percent,
    "B": format_bytes,
    "B/s": lambda value: f"{format_bytes(value)}/s",
    "1/s": lambda value: f"{format_count(value)}/s",
    "Hz": lambda value: f"{format_count(value)}Hz",
}
_UNITS = ("_per_s", "_bytes", "_share", "_hz", "_c", "_w")
_LABELS = 8


@dataclass(frozen=True, slots=True)
class Sampled:
    """A quantity over the runs; `label` is the one of several that it is of."""

    name: str
    label: str
    unit: str
    low: float | None
    mean: float | None
    high: float | None


def sampled(view: View) -> Iterator[Sampled]:
    """What was sampled; of a quantity with a sensible mean over its labels (cores) that alone."""
    quantities = measured_member(view, "system").get("quantities") or {}
    for name, found in quantities.items():
        if "mean" in found:
            yield Sampled(name, "", found["unit"], found["min"], found["mean"], found["max"])
            continue
        for label, extent in list((found.get("by_label") or {}).items())[:_LABELS]:
            yield Sampled(name, label, found["unit"], extent["min"], extent["mean"], extent["max"])


def system(view: View, options: Options) -> list[Line]:
    figures = measured_member(view, "system")
    entries = list(sampled(view))
    rows = [_cells(entry) for entry in entries if entry.high]
    nothing = ", ".join(_label(entry) for entry in entries if entry.high == 0)
    absent = figures.get("absent") or {}
    if not entries and not absent:
        return []
    headings = [Heading("Quantity", is_figure=False), *(Heading(title) for title in ("Mean", "Least", "Most"))]
    lines = [heading("System during the runs"), *(lay_out(headings, rows, options.width) if rows else [])]
    lines += wrap(f"No data for {visible(nothing)}.", options.width, style="dim") if nothing else []
    cost = (figures.get("cost") or {}).get("share")
    if cost is not None:
        lines += wrap(f"Sampling took {format_percent(cost)} of a core.", options.width, style="dim")
    return lines + _absent_lines(absent, options)


def _cells(entry: Sampled) -> list[Line]:
    return [
        text_cell(_label(entry)),
        *(figure(visible(_amount(value, entry.unit))) for value in (entry.mean, entry.low, entry.high)),
    ]


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return _FORMS[unit](value) if unit in _FORMS else f"{format_value(value)} {unit}"


def _label(entry: Sampled) -> str:
    return f"{plain_name(entry.name)} {entry.label}".strip()


def plain_name(name: str) -> str:
    """`rss_bytes` is `rss`, in bytes."""
    for unit in _UNITS:
        name = name.removesuffix(unit)
    return name.replace("_", " ")


def counters(view: View, options: Options) -> list[Line]:
    """What the processor counted of itself; what it does not count is told with the reason."""
    figures = measured_member(view, "counters")
    if not figures:
        return []
    facts = counter_facts(figures)
    lines = [heading("Processor counters, per run"), *(fact_lines(facts, options.width) if facts else [])]
    for note in figures.get("notes") or ():
        lines += wrap(visible(str(note)), options.width, lead=(Span("- "),), style="dim")
    return lines + _absent_lines(figures.get("absent") or {}, options)


def counter_facts(figures: Mapping[str, Any]) -> list[Fact]:
    facts: list[Fact] = []
    if figures.get("measured_flops") is not None:
        theory = f"the static count has {format_count(figures['theoretical_flops'])}"
        facts.append(("FLOPs executed", format_count(figures["measured_flops"]), theory))
    if widths := figures.get("vector_width_shares"):
        text = ", ".join(f"{_width(label)} {format_percent(share)}" for label, share in widths.items())
        facts.append(("Vector width", "", text))
    if figures.get("cache_hit_ratio") is not None:
        facts.append(("Cache hits", format_percent(figures["cache_hit_ratio"]), "of the references to the outer cache"))
    if figures.get("instructions_per_cycle") is not None:
        cycles = f"{format_count(figures['cycles'])} cycles"
        facts.append(("Instructions", format_value(figures["instructions_per_cycle"]), f"per cycle, {cycles}"))
    if figures.get("memory_bytes_per_s") is not None:
        rate, share = figures["memory_bytes_per_s"], figures.get("memory_bandwidth_share")
        note = "" if share is None else f"{format_percent(share)} of what the memory can do"
        facts.append(("Memory traffic", f"{format_bytes(rate)}/s", note))
    if figures.get("page_faults") is not None:
        facts.append(("Page faults", format_count(figures["page_faults"]), ""))
    return facts


def _width(label: str) -> str:
    return f"{label} bits" if label.isdigit() else label


def _absent_lines(absent: Mapping[str, str], options: Options) -> list[Line]:
    """One line for each reason, with all that it is the reason for."""
    reasons: dict[str, list[str]] = {}
    for name, reason in absent.items():
        reasons.setdefault(reason, []).append(plain_name(name))
    lines: list[Line] = []
    for reason, names in reasons.items():
        lines += wrap(visible(f"{', '.join(names)}: {reason}"), options.width, lead=(Span("no ", "dim"),), style="dim")
    return lines
