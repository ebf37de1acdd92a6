"""Energy as part of an analysis: a stage of the measurement, a figure of every point of a sweep, and the facts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torchgauge.energy.carbon import Footprint
from torchgauge.energy.estimate import Circumstances, spread
from torchgauge.energy.finalize import Analysed, completed
from torchgauge.energy.measuring import EnergyOrder, measure_run
from torchgauge.energy.pareto import ENERGY, TIME, mark_efficient
from torchgauge.energy.record import unavailable
from torchgauge.energy.technology import power_of
from torchgauge.energy.window import Effort
from torchgauge.facts import Capture, EnergyFacts, Measured
from torchgauge.hardware import Peaks, allows_tf32, cpu_name, device_name, has_cuda, peaks_of
from torchgauge.measure import Subject
from torchgauge.measure.parts import Work

# Of the time for the undisturbed runs.
_TRIALS, _PARTS, _POINT = 1.5, 3.0, 0.6


@dataclass(slots=True)
class EnergyWatch:
    """Measures where the measurement calls it; `facts` is what it found of the whole model."""

    budget_s: float
    facts: EnergyFacts | None = None

    def measure(self, work: Work) -> None:
        order = EnergyOrder(Effort(budget_s=_TRIALS * self.budget_s), parts_s=_PARTS * self.budget_s)
        self.facts = measure_run(work.subject, work.ops, order, run=work.run)

    def at_point(self, subject: Subject, run: Callable[[], None], row: dict[str, Any]) -> None:
        """Energy per sample at one point of a sweep; without a meter what the power's range gives over the time."""
        effort = Effort(budget_s=_POINT * self.budget_s, trials=3, settle_s=0.2, idle_s=0.5, warmup_s=2.0)
        found = measure_run(subject, (), EnergyOrder(effort, parts_s=0.0), run=run).figures
        row |= {ENERGY: found["joules_per_sample"], "watts_mean": found["watts_mean"]}
        row |= {"power_limit_watts": found["power_limit_watts"], "energy_reason": found["reason"]}
        if row[ENERGY] is None:
            row["estimated_energy_per_sample_j"] = _estimated_each(subject.device, row.get(TIME))


def _estimated_each(device: torch.device, time_s: float | None) -> dict[str, float] | None:
    peaks = peaks_of(name_of(device), device.type)
    power = power_of(peaks.watts if peaks else None, device.type, torch.get_num_threads())
    return spread(power.scaled(time_s)) if power and time_s else None


def energy_facts(
    capture: Capture, device: torch.device, facts: EnergyFacts | None, footprint: Footprint | None
) -> EnergyFacts:
    """The whole of what is told of energy, from what was measured of it."""
    name = name_of(device)
    peaks = peaks_of(name, device.type)
    facts = facts or _missed(capture.measured)
    known = _circumstances(capture.measured, device, name, peaks)
    return completed(facts, Analysed(capture.ops, capture.modules, capture.samples), known, peaks, footprint)


def _missed(measured: Measured | None) -> EnergyFacts | None:
    """Where the measurement did not come as far as the energy."""
    failure = measured.figures.get("failure") if measured else None
    return EnergyFacts(unavailable(f"the measurement ended before: {failure}")) if failure else None


def name_of(device: torch.device) -> str:
    """What the driver calls it; a device that is only pretended has no better name than torch's."""
    if device.type == "cuda":
        return device_name("cuda", device.index) if has_cuda(device.index) else str(device)
    return cpu_name()


def _circumstances(measured: Measured | None, device: torch.device, name: str, peaks: Peaks | None) -> Circumstances:
    figures = measured.figures if measured else {}
    threads = figures.get("threads") or {}
    times = {index: row["time_s"] for index, row in measured.ops.items() if row.get("time_s")} if measured else {}
    return Circumstances(
        device=name,
        kind=device.type,
        watts=peaks.watts if peaks else None,
        cores=threads.get("intra_op") or torch.get_num_threads(),
        time_s=(figures.get("latency") or {}).get("median_s"),
        op_times=times,
        tf32=device.type == "cuda" and allows_tf32("matmul"),
    )


def with_efficient_points(measured: Measured) -> Measured:
    """The rows of a sweep say whether they are on the front of time against energy."""
    rows = measured.figures.get("sweep")
    if not rows:
        return measured
    return Measured({**measured.figures, "sweep": mark_efficient(rows)}, measured.modules, measured.ops, measured.trace)
