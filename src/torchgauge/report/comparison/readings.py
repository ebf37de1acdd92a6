"""The figures that are compared, each with its origin and interval, and the change from one reading to another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from torchgauge.facts import View
from torchgauge.facts.figures import ESTIMATED, MEASURED, STATIC, TOTALS, TRAINING, Figure, Unit, Use, numbers_in
from torchgauge.facts.measurements import energy_of, measurements_of
from torchgauge.facts.rows import bytes_moved
from torchgauge.report.options import ABOUT, FORMS
from torchgauge.units import format_percent, format_value

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Latency


@dataclass(frozen=True, slots=True)
class Reading:
    """One figure of one analysis: `origin` is static, measured or estimated. A figure that `varies` has an interval,
    None if its spread is unknown."""

    value: float | None
    origin: str = STATIC
    interval: tuple[float, float] | None = None
    varies: bool = False


NO_READING = Reading(None)


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


def _total(figure: Figure) -> Callable[[View], Reading]:
    if figure.known is TRAINING:
        # Memory that only training needs: inference has none, and no row.
        return lambda view: Reading(view.totals[figure.key] or None)
    return lambda view: Reading(view.totals[figure.key], figure.origin)


def _latency(view: View) -> Reading:
    found = measurements_of(view).get("latency")
    return Reading(found and found["median_s"], MEASURED, _interval(found), varies=True)


def _throughput(view: View) -> Reading:
    found = measurements_of(view).get("latency")
    rate, median = (found["throughput_per_s"], found["median_s"]) if found else (None, None)
    known = _interval(found)
    if rate is None or not median or known is None:
        return Reading(rate, MEASURED, varies=True)
    # Samples of one run over its time: the slowest run gives the lowest rate.
    return Reading(rate, MEASURED, (rate * median / known[1], rate * median / known[0]), varies=True)


def _interval(latency: Latency | None) -> tuple[float, float] | None:
    """A single run has no interval: with one, its time would look certain."""
    known = latency["ci95_s"] if latency and latency["runs"] > 1 else None
    return (known[0], known[1]) if known else None


def _allocated_peak(view: View) -> Reading:
    # A run allocates the same each time.
    memory = measurements_of(view).get("memory")
    return Reading(memory.get("allocated_peak_bytes") if memory else None, MEASURED)


def _energy(view: View) -> Reading:
    """Measured joules; else the estimate, with its range and its mark."""
    figures = energy_of(view)
    if figures is None:
        return Reading(None)
    if figures["origin"] == MEASURED:
        known = figures.get("ci95_j")
        return Reading(figures["joules"], MEASURED, (known[0], known[1]) if known else None, varies=True)
    guess = figures.get("estimated_joules")
    if guess is None:
        return Reading(None)
    return Reading(guess["value"], ESTIMATED, (guess["low"], guess["high"]), varies=True)


# Quantities that are more than a total: with an interval, or from another source.
_READ: Mapping[str, Callable[[View], Reading]] = {
    "bytes_moved": lambda view: Reading(bytes_moved(view.totals)),
    "allocated_peak_bytes": _allocated_peak,
    "time_s": _latency,
    "throughput_per_s": _throughput,
    "energy_j": _energy,
}
QUANTITIES = tuple(
    Quantity(figure.key, figure.title, FORMS[figure.unit], _READ.get(figure.key) or _total(figure))
    for figure in numbers_in(Use.TOTALS_COMPARED, TOTALS)
)


def predicted_quantities(views: Sequence[View]) -> list[Quantity]:
    """Predicted memory and time, for each device that one of these was analysed for."""
    titles = {fit.device: fit.title for view in views for fit in view.capture.fit}
    timed = {row["device"]: row["title"] for view in views for row in view.capture.forecast}

    def used_on(device: str, view: View) -> Reading:
        fit = next((fit for fit in view.capture.fit if fit.device == device), None)
        if fit is None:
            return NO_READING
        span = fit.bounds["used_bytes"]
        return Reading(fit.used_bytes, ESTIMATED, (span.low, span.high))

    def time_on(device: str, view: View) -> Reading:
        row = next((row for row in view.capture.forecast if row["device"] == device), None)
        if row is None:
            return NO_READING
        return Reading(row["predicted_time_s"], ESTIMATED, (row["predicted_low_s"], row["predicted_high_s"]))

    used = [
        Quantity(f"fit.{device}.used_bytes", f"Memory on {title}", FORMS[Unit.BYTES], partial(used_on, device))
        for device, title in titles.items()
    ]
    time_key, seconds = "forecast.{}.predicted_time_s", FORMS[Unit.SECONDS]
    return used + [
        Quantity(time_key.format(device), f"Predicted time on {title}", seconds, partial(time_on, device))
        for device, title in timed.items()
    ]


# Shown only where they differ from their neighbours.
OPTIONAL = dict.fromkeys(("logical_params", "trainable_params", "active_params"), "params")


SAME, MORE, LESS = "same", "more", "less"
# Measured, intervals overlap; measured once, spread unknown; one measured, the other estimated;
# missing on a side.
INDISTINCT, UNCERTAIN, INCOMPARABLE, UNKNOWN = "indistinct", "uncertain", "incomparable", "unknown"

# Up to a tenfold change per cent read well, beyond it factors do.
_FACTORS_FROM = 10


@dataclass(frozen=True, slots=True)
class Change:
    """`difference` and `ratio` are given only where the two can be compared."""

    verdict: str
    difference: float | None = None
    ratio: float | None = None

    @property
    def text(self) -> str:
        """`+12.3 %`, `×14`, `no difference`."""
        if self.verdict in (MORE, LESS):
            if self.ratio is None:
                return "new"
            if self.ratio >= _FACTORS_FROM:
                return f"×{format_value(self.ratio)}"
            share = format_percent(self.ratio - 1)
            if share in ("0.0 %", "-0.0 %"):
                return "< 0.1 %"
            return f"+{share}" if self.ratio > 1 else share.replace("-", "−")
        words = {SAME: "=", INDISTINCT: "no difference", UNCERTAIN: "?", INCOMPARABLE: "not comparable", UNKNOWN: "-"}
        return words[self.verdict]


def change(base: Reading, other: Reading) -> Change:
    if base.value is None or other.value is None:
        return Change(UNKNOWN)
    if base.origin != other.origin:
        return Change(INCOMPARABLE)
    difference = other.value - base.value
    verdict = SAME if difference == 0 else MORE if difference > 0 else LESS
    if base.varies or other.varies:
        if base.interval is None or other.interval is None:
            verdict = UNCERTAIN
        elif base.interval[0] <= other.interval[1] and other.interval[0] <= base.interval[1]:
            verdict = INDISTINCT
    return Change(verdict, difference, other.value / base.value if base.value else None)
