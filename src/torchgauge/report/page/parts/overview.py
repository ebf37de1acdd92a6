"""What is read first: what the model is, the figures that matter, and what to beware of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torchgauge.report.coverage import coverage
from torchgauge.report.energy_ranking import is_estimated
from torchgauge.report.energy_text import range_text
from torchgauge.report.headline import input_facts, model_kind, parameter_note, run_text
from torchgauge.report.options import Options
from torchgauge.report.origin import origin_facts, stored_facts
from torchgauge.report.page.figures import ESTIMATED, MEASURED, STATIC
from torchgauge.report.page.payload import part
from torchgauge.report.peak import find_peak
from torchgauge.report.sections import note_texts
from torchgauge.report.sweep_points import interval_share
from torchgauge.units import (
    format_bytes,
    format_count,
    format_exact,
    format_joules,
    format_percent,
    format_seconds,
    format_watts,
)
from torchgauge.view import View


@dataclass(frozen=True, slots=True)
class Card:
    label: str
    value: str
    note: str = ""
    kind: str = STATIC


@part("overview")
def overview(view: View, options: Options) -> dict[str, Any]:
    capture, kind = view.capture, model_kind(view)
    return {
        "name": capture.target.name or kind,
        "kind": kind,
        "run": run_text(view),
        "facts": [*input_facts(view), *origin_facts(view)],
        "cards": [asdict(card) for card in _cards(view)],
        "warnings": warnings(view),
        "created": capture.created,
        "version": capture.version,
    }


def _cards(view: View) -> Iterator[Card]:
    yield from _parameters(view)
    yield from (Card(name, value, note) for name, value, note in stored_facts(view))
    if view.capture.has_code:
        yield from _work(view)
    yield from _latency(view)
    yield from _energy(view)


def _parameters(view: View) -> Iterator[Card]:
    figures, note = view.totals, parameter_note(view)
    exact = format_exact(figures.params)
    yield Card("Parameters", format_count(figures.params), f"{exact}; {note}" if note else exact)
    held = f"and {format_bytes(figures.buffer_bytes)} of buffers" if figures.buffer_bytes else ""
    yield Card("Parameter memory", format_bytes(figures.param_bytes), held)


def _work(view: View) -> Iterator[Card]:
    figures, peak = view.totals, find_peak(view)
    moved = figures.bytes_read + figures.bytes_written
    yield Card("MACs", format_count(figures.macs), format_exact(figures.macs))
    yield Card("FLOPs", format_count(figures.flops), format_exact(figures.flops))
    intensity = f"{format_count(figures.flops / moved)} FLOPs per byte" if moved else ""
    yield Card("Bytes moved", format_bytes(moved), intensity)
    yield Card("Peak activations", format_bytes(peak.activation_bytes), f"at {peak.place}")


def _latency(view: View) -> Iterator[Card]:
    figures: Mapping[str, Any] = view.measurements or {}
    found = figures.get("latency")
    if not found:
        return
    precision = interval_share(found)
    spread = (
        "one run"
        if precision is None
        else f"median of {format_exact(found['runs'])} runs, ±{format_percent(precision)}"
    )
    yield Card("Latency", format_seconds(found["median_s"]), spread, MEASURED)
    if found.get("throughput_per_s") is not None:
        yield Card("Throughput", f"{format_count(found['throughput_per_s'])}/s", "samples, at the median", MEASURED)


def _energy(view: View) -> Iterator[Card]:
    figures: Mapping[str, Any] = view.energy or {}
    if view.totals.energy_j is not None:
        mean = figures.get("watts_mean")
        note = f"one run, at {format_watts(mean)} in the mean" if mean is not None else "one run"
        yield Card("Energy", format_joules(view.totals.energy_j), note, MEASURED)
    elif figures and is_estimated(view):
        joules = figures["estimated_joules"]
        yield Card("Energy", f"≈ {format_joules(joules['value'])}", range_text(joules), ESTIMATED)


def warnings(view: View) -> list[str]:
    texts = note_texts(view)
    if view.capture.has_code and (uncounted := coverage(view)).uncounted:
        names = ", ".join(entry.op for entry in uncounted.uncounted_ops[:6])
        texts.append(
            f"Without a formula: {format_percent(uncounted.ops_share)} of the ops, which move "
            f"{format_percent(uncounted.bytes_share)} of the bytes; their MACs and FLOPs are missing: {names}"
        )
    figures: Mapping[str, Any] = view.measurements or {}
    if figures.get("failure"):
        texts.append(f"The measurement ended early: {figures['failure']}")
    texts += map(str, figures.get("notes") or ())
    failures = view.capture.statistics.failures if view.capture.statistics else ()
    if failures:
        names = ", ".join(name for name, _ in failures[:6])
        texts.append(f"{format_exact(len(failures))} tensors could not be read: {names}")
    return texts
