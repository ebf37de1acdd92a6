"""Figures of energy made whole: an estimate where nothing was measured, the device's best, the carbon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchgauge.energy.carbon import Footprint
from torchgauge.energy.estimate import Circumstances, Estimate, estimate, module_shares
from torchgauge.energy.record import ESTIMATED, MEASURED, unavailable
from torchgauge.facts import EnergyFacts, ModuleRecord, OpRecord
from torchgauge.hardware import Peaks
from torchgauge.units import format_seconds

NOT_MEASURED = "energy is measured with --profile"
# Runs beside the meter may take so much more or less time than the undisturbed ones.
_OTHER_TIME = 0.1


@dataclass(frozen=True, slots=True)
class Analysed:
    """What was analysed: its ops and modules, and the samples of one run."""

    ops: Sequence[OpRecord]
    modules: Sequence[ModuleRecord]
    samples: int = 1


def completed(
    facts: EnergyFacts | None, subject: Analysed, known: Circumstances, peaks: Peaks | None, footprint: Footprint | None
) -> EnergyFacts:
    """Measured figures stay as they are; where there are none, an estimate takes their place under its own names."""
    found = facts or EnergyFacts(unavailable(NOT_MEASURED))
    if found.figures["origin"] != MEASURED and subject.ops:
        found = estimated(found, estimate(subject.ops, known), subject)
    found = noted(found, known.time_s) if found.figures["origin"] == MEASURED else found
    figures = {**found.figures, "device_best": device_best(subject.ops, peaks, tf32=known.tf32)}
    if footprint is not None:
        figures["carbon"] = footprint.figures(figures, samples=subject.samples)
    return replace(found, figures=figures)


def noted(found: EnergyFacts, time_s: float | None) -> EnergyFacts:
    """Joules are those of the runs beside the meter: where these took another time, the report says so."""
    figures = found.figures
    if not time_s or not figures["iterations"]:
        return found
    taken = figures["window_s"] / figures["iterations"]
    if abs(taken / time_s - 1) <= _OTHER_TIME:
        return found
    note = f"a run took {format_seconds(taken)} beside the meter, not {format_seconds(time_s)} as the undisturbed ones"
    return replace(found, figures={**figures, "notes": [*figures["notes"], note]})


def estimated(found: EnergyFacts, guess: Estimate, subject: Analysed) -> EnergyFacts:
    """`reason` goes on saying why nothing was measured."""
    figures = {**found.figures, "origin": ESTIMATED, **guess.figures(samples=subject.samples)}
    shares = module_shares(subject.ops, subject.modules, guess.ops)
    return EnergyFacts(
        figures=figures,
        modules={path: guess.range_of(share) for path, share in shares.items() if share},
        ops={index: guess.range_of(share) for index, share in guess.ops.items() if share},
    )


def device_best(ops: Sequence[OpRecord], peaks: Peaks | None, *, tf32: bool = False) -> dict[str, Any] | None:
    """Operations per joule that no run can reach: the published peak over the published limit, in the type most of the
    work is done in. None where one of the two is not known."""
    flops: dict[str, int] = {}
    for op in ops:
        if op.signature.dtype:
            flops[op.signature.dtype] = flops.get(op.signature.dtype, 0) + op.cost.flops
    dtype = max(flops, key=lambda name: flops[name], default=None)
    rate = peaks.rate(dtype, tf32=tf32) if peaks else None
    if peaks is None or rate is None or not peaks.watts:
        return None
    bound = f"published peak over the limit of {peaks.watts:g} W ({peaks.source})"
    return {"flops_per_joule": rate / peaks.watts, "dtype": dtype, "source": bound}
