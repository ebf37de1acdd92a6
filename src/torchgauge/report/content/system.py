"""The machine during the runs, and processor counters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchgauge.facts import View
from torchgauge.facts.measurements import measurements_of
from torchgauge.registry import grouped
from torchgauge.report.model import Block, Fact, Facts, Section, Text, Topic, figures, notes, table, texts
from torchgauge.report.options import Options
from torchgauge.units import format_bytes, format_count, format_percent, format_value

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Counters

_FORMS: Mapping[str, Callable[[float], str]] = {
    "share": format_percent,
    "B": format_bytes,
    "B/s": lambda value: f"{format_bytes(value)}/s",
    "1/s": lambda value: f"{format_count(value)}/s",
    "Hz": lambda value: f"{format_count(value)}Hz",
}
_UNITS = ("_per_s", "_bytes", "_share", "_hz", "_c", "_w")
_SHOWN_LABELS = 8


def sections(view: View, options: Options) -> Iterator[Section]:
    found = measurements_of(view).get("system")
    quantities, absent = list(sampled(view)), found["absent"] if found else {}
    if quantities or absent:
        rows = [
            (one.title, one.text(one.mean), one.text(one.low), one.text(one.high)) for one in quantities if one.high
        ]
        blocks: list[Block] = []
        blocks += [table((*texts("Quantity"), *figures("Mean", "Least", "Most")), rows)] if rows else []
        if nothing := ", ".join(entry.title for entry in quantities if entry.high == 0):
            blocks.append(Text(f"No data for {nothing}.", is_remark=True))
        cost = found.get("cost") if found else None
        if cost and cost["share"] is not None:
            blocks.append(Text(f"Sampling took {format_percent(cost['share'])} of a core.", is_remark=True))
        blocks += _absent(absent)
        yield Section("System during the runs", tuple(blocks), Topic.SYSTEM, page_part="surroundings")
    counted = measurements_of(view).get("counters")
    if counted:
        facts = counter_facts(counted)
        blocks = [Facts(facts)] if facts else []
        blocks += notes([str(note) for note in counted.get("notes") or ()], is_remark=True)
        blocks += _absent(counted.get("absent") or {})
        yield Section("Processor counters, per run", tuple(blocks), Topic.SYSTEM, page_part="system")


@dataclass(frozen=True, slots=True)
class Sampled:
    """A quantity over the runs; `label` names one of several sources, such as a core."""

    name: str
    label: str
    unit: str
    low: float | None
    mean: float | None
    high: float | None

    @property
    def title(self) -> str:
        return f"{plain_name(self.name)} {self.label}".strip()

    def text(self, value: float | None) -> str:
        if value is None:
            return "-"
        return _FORMS[self.unit](value) if self.unit in _FORMS else f"{format_value(value)} {self.unit}"


def sampled(view: View) -> Iterator[Sampled]:
    """The sampled quantities; one with a meaningful mean over its labels (cores) has only that."""
    system = measurements_of(view).get("system")
    for name, found in system["quantities"].items() if system else ():
        if "mean" in found:
            yield Sampled(name, "", found["unit"], found["min"], found["mean"], found["max"])
            continue
        for label, extent in list((found.get("by_label") or {}).items())[:_SHOWN_LABELS]:
            yield Sampled(name, label, found["unit"], extent["min"], extent["mean"], extent["max"])


def plain_name(name: str) -> str:
    """`rss_bytes` is `rss`, in bytes."""
    for unit in _UNITS:
        name = name.removesuffix(unit)
    return name.replace("_", " ")


def counter_facts(found: Counters) -> list[Fact]:
    facts: list[Fact] = []
    if found.get("measured_flops") is not None:
        theory = f"the static count has {format_count(found['theoretical_flops'])}"
        facts.append(("FLOPs executed", format_count(found["measured_flops"]), theory))
    if widths := found.get("vector_width_shares"):
        named = {f"{label} bits" if label.isdigit() else label: share for label, share in widths.items()}
        facts.append(
            ("Vector width", "", ", ".join(f"{name} {format_percent(share)}" for name, share in named.items()))
        )
    if found.get("cache_hit_ratio") is not None:
        facts.append(("Cache hits", format_percent(found["cache_hit_ratio"]), "of the references to the outer cache"))
    if found.get("instructions_per_cycle") is not None:
        cycles = f"{format_count(found['cycles'])} cycles"
        facts.append(("Instructions", format_value(found["instructions_per_cycle"]), f"per cycle, {cycles}"))
    if found.get("memory_bytes_per_s") is not None:
        share = found.get("memory_bandwidth_share")
        note = "" if share is None else f"{format_percent(share)} of what the memory can do"
        facts.append(("Memory traffic", f"{format_bytes(found['memory_bytes_per_s'])}/s", note))
    if found.get("page_faults") is not None:
        facts.append(("Page faults", format_count(found["page_faults"]), ""))
    return facts


def _absent(absent: Mapping[str, str]) -> Iterator[Block]:
    """One sentence for each reason, with everything that is absent for it."""
    reasons = grouped((reason, plain_name(name)) for name, reason in absent.items())
    yield from (Text(f"no {', '.join(names)}: {reason}", is_remark=True) for reason, names in reasons.items())
