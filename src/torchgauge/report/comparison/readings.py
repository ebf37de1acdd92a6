"""The figures that are compared, each with where it comes from and how far it is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torchgauge.facts import View
from torchgauge.facts.energy import ESTIMATED, MEASURED
from torchgauge.report.measurements import measured_member
from torchgauge.units import format_bytes, format_count, format_exact, format_joules, format_seconds

STATIC = "static"
ABOUT = "≈ "


@dataclass(frozen=True, slots=True)
class Reading:
    """One figure of one analysis: `origin` is static, measured or estimated. What `varies` has an interval, None where
    it is not known how much."""

    value: float | None
    origin: str = STATIC
    interval: tuple[float, float] | None = None
    varies: bool = False


UNKNOWN = Reading(None)


@dataclass(frozen=True, slots=True)
class Quantity:
    key: str
    title: str
    form: Callable[[Any], str]
    read: Callable[[View], Reading]

    def text(self, reading: Reading) -> str:
        """An estimate carries its mark."""
        text = self.form(reading.value)
        return f"{ABOUT}{text}" if reading.origin == ESTIMATED and reading.value is not None else text


def _total(key: str) -> Callable[[View], Reading]:
    return lambda view: Reading(view.totals[key])


def _of_step(key: str) -> Callable[[View], Reading]:
    """Memory that only training needs: inference has none, and no row."""
    return lambda view: Reading(view.totals[key] or None)


def _bytes_moved(view: View) -> Reading:
    totals = view.totals
    return Reading(None if totals.bytes_read is None else totals.bytes_read + totals.bytes_written)


def _latency(view: View) -> Reading:
    found = measured_member(view, "latency")
    return Reading(found.get("median_s"), MEASURED, _interval(found), varies=True)


def _throughput(view: View) -> Reading:
    found, known = measured_member(view, "latency"), _interval(measured_member(view, "latency"))
    rate, median = found.get("throughput_per_s"), found.get("median_s")
    if rate is None or not median or known is None:
        return Reading(rate, MEASURED, varies=True)
    # Samples of one run over its time: the slowest run gives the lowest rate.
    return Reading(rate, MEASURED, (rate * median / known[1], rate * median / known[0]), varies=True)


def _interval(latency: Mapping[str, Any]) -> tuple[float, float] | None:
    """One run has no interval: its own time would pass for certainty."""
    known = latency.get("ci95_s")
    return (known[0], known[1]) if known and latency.get("runs", 0) > 1 else None


def _allocated_peak(view: View) -> Reading:
    # What a run allocates is the same each time.
    return Reading(measured_member(view, "memory").get("allocated_peak_bytes"), MEASURED)


def _energy(view: View) -> Reading:
    """Measured joules; else the estimate, with its range and its mark."""
    figures: Mapping[str, Any] = view.energy or {}
    if figures.get("origin") == MEASURED:
        known = figures.get("ci95_j")
        return Reading(figures.get("joules"), MEASURED, (known[0], known[1]) if known else None, varies=True)
    guess = figures.get("estimated_joules")
    if guess is None:
        return Reading(None)
    return Reading(guess["value"], ESTIMATED, (guess["low"], guess["high"]), varies=True)


def _per_second(value: float | None) -> str:
    return "-" if value is None else f"{format_count(value)}/s"


QUANTITIES = (
    Quantity("params", "Parameters", format_count, _total("params")),
    Quantity("logical_params", "Logical parameters", format_count, _total("logical_params")),
    Quantity("trainable_params", "Trainable", format_count, _total("trainable_params")),
    Quantity("active_params", "Active per token", format_count, _total("active_params")),
    Quantity("param_bytes", "Parameter memory", format_bytes, _total("param_bytes")),
    Quantity("buffer_bytes", "Buffers", format_bytes, _total("buffer_bytes")),
    Quantity("stored_bytes", "Stored", format_bytes, _total("stored_bytes")),
    Quantity("optimizer_elements", "Optimizer state", format_count, _total("optimizer_elements")),
    Quantity("macs", "MACs", format_count, _total("macs")),
    Quantity("flops", "FLOPs", format_count, _total("flops")),
    Quantity("bytes_moved", "Bytes moved", format_bytes, _bytes_moved),
    Quantity("activation_bytes", "Activations", format_bytes, _total("activation_bytes")),
    Quantity("peak_activation_bytes", "Peak activations", format_bytes, _total("peak_activation_bytes")),
    Quantity("saved_activation_bytes", "Saved for backward", format_bytes, _of_step("saved_activation_bytes")),
    Quantity("gradient_bytes", "Gradients", format_bytes, _of_step("gradient_bytes")),
    Quantity("optimizer_bytes", "Optimizer memory", format_bytes, _of_step("optimizer_bytes")),
    Quantity("total_bytes", "Memory in total", format_bytes, _total("total_bytes")),
    Quantity("ops", "Ops", format_exact, _total("ops")),
    Quantity("uncounted_ops", "Ops not counted", format_exact, _total("uncounted_ops")),
    Quantity("allocated_peak_bytes", "Measured peak", format_bytes, _allocated_peak),
    Quantity("time_s", "Latency", format_seconds, _latency),
    Quantity("throughput_per_s", "Throughput", _per_second, _throughput),
    Quantity("energy_j", "Energy", format_joules, _energy),
)
# Said only where they are not the same as their neighbours.
OPTIONAL = dict.fromkeys(("logical_params", "trainable_params", "active_params"), "params")
