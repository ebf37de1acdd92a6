"""Energy as part of an analysis: a stage of the measurement, a figure of every point of a sweep, and the facts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from torchgauge.energy.carbon import Footprint
from torchgauge.energy.energy_window import Effort
from torchgauge.energy.estimate import Circumstances, Estimate, estimate_energy, module_shares, power_of, spread
from torchgauge.energy.measuring import EnergyPlan, measure_run, unavailable
from torchgauge.facts import Capture, EnergyFacts, Measured, ModuleRecord, OpRecord, blank_measurements
from torchgauge.facts.figures import ESTIMATED, MEASURED
from torchgauge.hardware import Peaks, allows_tf32, cpu_name, device_name, has_cuda, peaks_of
from torchgauge.measure import Subject
from torchgauge.measure.parts import Measurement
from torchgauge.registry import summed
from torchgauge.units import format_seconds

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Best, EnergyFigures, SweepPoint

# Relative to the time for the undisturbed runs.
_TRIALS_BUDGET, _PARTS_BUDGET, _POINT_BUDGET = 1.5, 3.0, 0.6


@dataclass(slots=True)
class EnergyWatch:
    """A stage of the measurement; `facts` is the energy of the whole model."""

    budget_s: float
    facts: EnergyFacts | None = None

    def measure(self, work: Measurement) -> None:
        plan = EnergyPlan(Effort(budget_s=_TRIALS_BUDGET * self.budget_s), parts_s=_PARTS_BUDGET * self.budget_s)
        self.facts = measure_run(work.subject, work.ops, plan, run=work.run)

    def at_point(self, subject: Subject, run: Callable[[], None], row: SweepPoint) -> None:
        """Energy per sample at one point of a sweep; without a meter, the range of the power times the time."""
        effort = Effort(budget_s=_POINT_BUDGET * self.budget_s, trials=3, settle_s=0.2, idle_s=0.5, warmup_s=2.0)
        found = measure_run(subject, (), EnergyPlan(effort, parts_s=0.0), run=run).figures
        joules = found["joules_per_sample"]
        row |= {"energy_per_sample_j": joules, "watts_mean": found["watts_mean"]}
        row |= {"power_limit_watts": found["power_limit_watts"], "energy_reason": found["reason"]}
        if joules is None:
            time_s = row.get("time_per_sample_s")
            peaks = peaks_of(name_of(subject.device), subject.device.type)
            power = power_of(peaks.watts if peaks else None, subject.device.type, torch.get_num_threads())
            row["estimated_energy_per_sample_j"] = spread(power.scaled(time_s)) if power and time_s else None


def energy_facts(
    capture: Capture, device: torch.device, facts: EnergyFacts | None, footprint: Footprint | None
) -> EnergyFacts:
    """Everything the report says about energy, from the measured energy."""
    name = name_of(device)
    peaks = peaks_of(name, device.type)
    figures = capture.measured.figures if capture.measured else blank_measurements()
    if facts is None and (failure := figures.get("failure")):
        facts = EnergyFacts(unavailable(f"the measurement failed: {failure}"))
    threads, latency = figures.get("threads"), figures.get("latency")
    times = (
        {index: row["time_s"] for index, row in capture.measured.ops.items() if row.get("time_s")}
        if capture.measured
        else {}
    )
    known = Circumstances(
        device=name,
        kind=device.type,
        watts=peaks.watts if peaks else None,
        cores=(threads and threads.get("intra_op")) or torch.get_num_threads(),
        time_s=latency["median_s"] if latency else None,
        op_times=times,
        tf32=device.type == "cuda" and allows_tf32("matmul"),
    )
    return completed(facts, Analysed(capture.ops, capture.modules, capture.samples), known, peaks, footprint)


def name_of(device: torch.device) -> str:
    """The driver's name of the device; torch's name for one that is not present."""
    if device.type == "cuda":
        return device_name("cuda", device.index) if has_cuda(device.index) else str(device)
    return cpu_name()


def with_efficient_points(measured: Measured) -> Measured:
    """Mark the rows of a sweep that are on the front of time against energy."""
    rows = measured.figures.get("sweep")
    if not rows:
        return measured
    return Measured({**measured.figures, "sweep": mark_efficient(rows)}, measured.modules, measured.ops, measured.trace)


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """The indices of the points that no other point dominates, ordered by the first figure. Less is better in both; of
    equal points, the first counts."""
    order = sorted(range(len(points)), key=lambda place: (*points[place], place))
    found: list[int] = []
    least = float("inf")
    for place in order:
        if points[place][1] < least:
            found.append(place)
            least = points[place][1]
    return found


def mark_efficient(rows: Sequence[SweepPoint]) -> list[SweepPoint]:
    """The rows of a sweep with `efficient`: whether the point is on the front; None if one of the two figures was not
    measured. An estimate does not count: it is proportional to the time."""
    both = [(row.get("time_per_sample_s"), row.get("energy_per_sample_j")) for row in rows]
    known = {place: (time, joules) for place, (time, joules) in enumerate(both) if time and joules}
    chosen = {list(known)[place] for place in front(list(known.values()))}
    return [{**row, "efficient": place in chosen if place in known else None} for place, row in enumerate(rows)]


NOT_MEASURED = "energy is measured with --profile"
# If the time of metered and undisturbed runs differs by more than this share, a note says so.
_MAX_TIME_DIFFERENCE = 0.1


@dataclass(frozen=True, slots=True)
class Analysed:
    """The analysed ops and modules, and the samples of one run."""

    ops: Sequence[OpRecord]
    modules: Sequence[ModuleRecord]
    samples: int = 1


def completed(
    facts: EnergyFacts | None, subject: Analysed, known: Circumstances, peaks: Peaks | None, footprint: Footprint | None
) -> EnergyFacts:
    """Measured figures are kept; without them an estimate is added under separate names."""
    found = facts or EnergyFacts(unavailable(NOT_MEASURED))
    if found.figures["origin"] != MEASURED and subject.ops:
        found = estimated(found, estimate_energy(subject.ops, known), subject)
    found = noted(found, known.time_s) if found.figures["origin"] == MEASURED else found
    figures: EnergyFigures = {**found.figures, "device_best": device_best(subject.ops, peaks, tf32=known.tf32)}
    if footprint is not None:
        figures["carbon"] = footprint.figures(figures, samples=subject.samples)
    return replace(found, figures=figures)


def noted(found: EnergyFacts, time_s: float | None) -> EnergyFacts:
    """Joules are those of the metered runs; the report says so if these took longer or shorter."""
    figures = found.figures
    if not time_s or not figures["iterations"] or figures["window_s"] is None:
        return found
    taken = figures["window_s"] / figures["iterations"]
    if abs(taken / time_s - 1) <= _MAX_TIME_DIFFERENCE:
        return found
    note = f"metered runs took {format_seconds(taken)}, undisturbed ones {format_seconds(time_s)}"
    return replace(found, figures={**figures, "notes": [*figures["notes"], note]})


def estimated(found: EnergyFacts, guess: Estimate, subject: Analysed) -> EnergyFacts:
    """`reason` still says why nothing was measured."""
    figures: EnergyFigures = {**found.figures, "origin": ESTIMATED, **guess.figures(samples=subject.samples)}
    shares = module_shares(subject.ops, subject.modules, guess.ops)
    return EnergyFacts(
        figures=figures,
        modules={path: guess.range_of(share) for path, share in shares.items() if share},
        ops={index: guess.range_of(share) for index, share in guess.ops.items() if share},
    )


def device_best(ops: Sequence[OpRecord], peaks: Peaks | None, *, tf32: bool = False) -> Best | None:
    """An upper bound of the operations per joule: the published peak over the published power limit, in the type of
    most of the work. None if one of the two is unknown."""
    flops = summed((op.signature.dtype, op.cost.flops) for op in ops if op.signature.dtype)
    dtype = max(flops, key=lambda name: flops[name], default=None)
    rate = peaks.rate(dtype, tf32=tf32) if peaks else None
    if peaks is None or rate is None or dtype is None or not peaks.watts:
        return None
    bound = f"published peak over the limit of {peaks.watts:g} W ({peaks.source})"
    return {"flops_per_joule": rate / peaks.watts, "dtype": dtype, "source": bound}
