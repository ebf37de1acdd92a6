"""The same measurement over several batch sizes, lengths, types or numbers of threads, and time against energy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from torchgauge.facts import View
from torchgauge.facts.measurements import measurements_of
from torchgauge.facts.plausibility import interval_share
from torchgauge.report.bars import MARKED
from torchgauge.report.model import (
    Bars,
    Block,
    Fact,
    Facts,
    Point,
    Scatter,
    Section,
    Text,
    Topic,
    figures,
    notes,
    table,
    texts,
)
from torchgauge.report.options import ABOUT, Options
from torchgauge.units import (
    format_bytes,
    format_count,
    format_exact,
    format_joules,
    format_percent,
    format_seconds,
    format_value,
    format_watts,
)

if TYPE_CHECKING:
    from torchgauge.facts.document_types import SweepPoint as SweepRow

TIME: Final = "time_per_sample_s"
ENERGY: Final = "energy_per_sample_j"
GUESS: Final = "estimated_energy_per_sample_j"
PARETO = "Time against energy, per sample"
NO_FRONT = "Energy is estimated from time, so no Pareto front can be drawn."
ON_FRONT = "no other point is both faster and more efficient."
# Batches and threads are varied for throughput, anything else for speed.
_BY_THROUGHPUT = ("batch", "threads")


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One point of a sweep; its figures are None if the run failed, and `failure` says why."""

    key: str
    value: int | float | str
    median_s: float | None
    precision: float | None
    throughput_per_s: float | None
    peak_bytes: int | None
    failure: str | None


def sections(view: View, options: Options) -> Iterator[Section]:
    for key, points in sweep_points(view).items():
        rows = []
        for point in points:
            time = format_seconds(point.median_s), format_percent(point.precision)
            rows.append((str(point.value), *time, format_count(point.throughput_per_s), format_bytes(point.peak_bytes)))
        is_rate = key in _BY_THROUGHPUT
        drawn = tuple(point.throughput_per_s if is_rate else point.median_s for point in points)
        bars = Bars("throughput" if is_rate else "time", drawn)
        measured = table(figures(key, "Median", "±", "Samples/s", "Peak"), rows, bars=bars)
        failures = [f"{key} {point.value}: {point.failure}" for point in points if point.failure]
        blocks = (measured, *notes(failures, is_warning=True))
        yield Section(f"Sweep over {key}", blocks, Topic.SWEEP, page_part="sweeps")
    yield from _pareto(view)
    threads = measurements_of(view).get("threads") or {}
    if scaling := threads.get("scaling"):
        timed = []
        for row in scaling:
            speed = format_value(row["speedup"]), format_percent(row["efficiency"])
            timed.append((format_exact(row["threads"]), format_seconds(row["median_s"]), *speed))
        bars = Bars("speed-up", tuple(row["speedup"] for row in scaling))
        scaled = table(figures("Threads", "Median", "Speed-up", "Efficiency"), timed, bars=bars)
        facts = [*thread_facts(view)]
        yield Section("Thread scaling", (scaled, *([Facts(facts)] if facts else [])), Topic.SWEEP, page_part="sweeps")


def sweep_points(view: View) -> dict[str, list[SweepPoint]]:
    """The points of each swept quantity, in the order of measurement."""
    points: dict[str, list[SweepPoint]] = {}
    for row in measurements_of(view).get("sweep") or ():
        latency, memory = row["latency"], row.get("memory")
        point = SweepPoint(
            key=row["key"],
            value=row["value"],
            median_s=latency and latency["median_s"],
            precision=interval_share(latency),
            throughput_per_s=latency and latency["throughput_per_s"],
            peak_bytes=memory.get("allocated_peak_bytes") if memory else None,
            failure=row["failure"],
        )
        points.setdefault(row["key"], []).append(point)
    return points


def points_with_energy(view: View) -> list[SweepRow]:
    rows = measurements_of(view).get("sweep") or ()
    return [row for row in rows if row.get(ENERGY) is not None or row.get(GUESS)]


def _pareto(view: View) -> Iterator[Section]:
    rows = points_with_energy(view)
    if not rows:
        return
    cells = []
    for row in rows:
        guess = row.get(GUESS)
        if row.get(ENERGY) is not None or guess is None:
            energy = format_joules(row[ENERGY])
        else:
            within = f"{format_joules(guess['low'])} to {format_joules(guess['high'])}"
            energy = f"{ABOUT}{format_joules(guess['value'])} ({within})"
        mark = MARKED if row.get("efficient") else ""
        point, cap = f"{row['key']} {row['value']}", format_watts(row.get("power_limit_watts"))
        cells.append((point, format_seconds(row.get(TIME)), energy, cap, mark))
    blocks: list[Block] = [table((*texts("Point"), *figures("Time", "Energy", "Power cap", "")), cells)]
    measured = [row for row in rows if row.get(ENERGY) is not None]
    if not measured:
        title = f"{PARETO}, energy ESTIMATED"
        blocks.append(Text(NO_FRONT, is_remark=True))
    else:
        title = PARETO
        blocks.append(Text(f"{MARKED}: {ON_FRONT}", is_remark=True))
    points = tuple(
        Point(seconds, joules, bool(row.get("efficient")))
        for row in measured
        if (seconds := row.get(TIME)) and (joules := row[ENERGY]) is not None
    )
    if points:
        ends = max(point.x for point in points), max(point.y for point in points)
        blocks.append(Scatter(points, format_seconds(ends[0]), format_joules(ends[1])))
    yield Section(title, tuple(blocks), Topic.SWEEP, page_part="energy")


def thread_facts(view: View) -> Iterator[Fact]:
    threads = measurements_of(view).get("threads") or {}
    if threads.get("utilisation") is not None:
        yield "Busy", format_percent(threads["utilisation"]), "of the threads' time in the undisturbed runs"
    if serial := {kind: share for kind, share in (threads.get("serial_share") or {}).items() if share is not None}:
        text = ", ".join(f"{kind} {format_percent(share)}" for kind, share in serial.items())
        yield "Serial", "", f"{text}: the share that does not run in parallel, by Amdahl's law"
