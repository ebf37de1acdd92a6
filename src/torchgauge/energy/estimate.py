"""Energy without a meter: operations and bytes at published energies, power over the time the run took.

    low   the arithmetic and every byte at the lowest published figures, or the least power over
          the time, whichever is more
    high  the most power the device can take over the time; without a time, work and bytes at the highest figures

An estimate is a range. Its single value, the geometric mean, only serves to rank parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchgauge.energy.technology import Range, Technology, power_of, technology_of
from torchgauge.facts import COUNTED, ModuleRecord, OpRecord

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Range as RangeRow

ESTIMATED = "estimated"
NO_TIME = "without the power the device takes over time, since no time was measured: a run takes more"
NO_POWER = "without the power the device takes over time, which is not known for it: a run takes more"


@dataclass(frozen=True, slots=True)
class Circumstances:
    """The conditions of the run: the name of the device, torch's type of it and its published limit in watts; the
    median time, the times of ops, and the cores in use."""

    device: str
    kind: str = "cpu"
    watts: float | None = None
    cores: int | None = None
    time_s: float | None = None
    op_times: Mapping[int, float] = field(default_factory=dict)
    tf32: bool = False


@dataclass(frozen=True, slots=True)
class Estimate:
    """`ops` by index: their shares of the value; those of all ops add up to it."""

    joules: Range
    work: Range
    power: Range | None
    technology: Technology
    ops: Mapping[int, float]
    notes: tuple[str, ...]
    flops: int = 0
    time_s: float | None = None

    @property
    def value(self) -> float:
        return self.joules.value

    def range_of(self, share: float) -> dict[str, float]:
        """The members of a row whose part of the value is this."""
        scale = share / self.value if self.value else 0.0
        return {
            "estimated_energy_j": share,
            "estimated_energy_low_j": self.joules.low * scale,
            "estimated_energy_high_j": self.joules.high * scale,
        }

    def figures(self, *, samples: int = 1) -> dict[str, Any]:
        """`energy.estimated_joules` and what it rests on, as plain JSON. Power is that over the time; without a time
        what the device can take."""
        watts = self.joules.scaled(1 / self.time_s) if self.time_s else self.power
        rate = Range(self.flops / self.joules.high, self.flops / self.joules.low) if self.joules.low else None
        return {
            "estimated_joules": spread(self.joules),
            "estimated_joules_per_sample": spread(self.joules.scaled(1 / samples)),
            "estimated_watts_mean": None if watts is None else spread(watts),
            "estimated_flops_per_joule": None if rate is None or not self.flops else spread(rate),
            "estimated_from": {
                "technology": self.technology.name,
                "technology_known": self.technology.is_known,
                "work_joules": spread(self.work),
                "watts": None if self.power is None else spread(self.power),
                "sources": list(self.technology.sources),
                "notes": list(self.notes),
            },
        }


def estimate_energy(ops: Sequence[OpRecord], known: Circumstances) -> Estimate:
    technology = technology_of(known.device, known.kind)
    by_op: dict[int, Range] = {}
    for op in ops:
        cost, dtype = op.cost, op.signature.dtype
        # TF32 is for matrix work only.
        mac_j = technology.mac_j("tf32" if known.tf32 and dtype == "float32" else dtype)
        other_j = technology.operation_j(dtype).scaled(max(cost.flops - 2 * cost.macs, 0))
        moved_j = technology.byte_j().scaled(cost.bytes_read + cost.bytes_written)
        by_op[op.index] = moved_j.plus(mac_j.scaled(cost.macs)).plus(other_j)
    work = Range(sum(one.low for one in by_op.values()), sum(one.high for one in by_op.values()))
    power = power_of(known.watts, known.kind, known.cores)
    if power is None or not known.time_s:
        joules = work
    else:
        taken = power.scaled(known.time_s)
        # If the work would need more power than the device can take, it cost less than published: the limit applies.
        joules = Range(min(max(work.low, taken.low), taken.high), taken.high)
    # Energy that the work does not explain is spread over the time of the ops; without times, over their work.
    shares = {index: one.value for index, one in by_op.items()}
    worked, timed = sum(shares.values()), sum(known.op_times.get(index, 0.0) for index in shares)
    rest = joules.value - worked
    for index, own in shares.items():
        if rest > 0 and timed:
            shares[index] = own + rest * known.op_times.get(index, 0.0) / timed
        else:
            shares[index] = own * (joules.value / worked if worked else 0.0)
    notes = tuple(_notes(ops, technology, power, known))
    flops = sum(op.cost.flops for op in ops)
    return Estimate(joules, work, power, technology, shares, notes, flops, known.time_s)


def module_shares(
    ops: Sequence[OpRecord], modules: Sequence[ModuleRecord], shares: Mapping[int, float]
) -> dict[str, float]:
    """Of a module: its own ops and those of the modules below."""
    found = {module.path: 0.0 for module in modules}
    for op in ops:
        parts = op.module.split(".") if op.module else []
        for path in [".".join(parts[:depth]) for depth in range(len(parts), -1, -1)]:
            if path in found:
                found[path] += shares[op.index]
    return found


def _notes(ops: Sequence[OpRecord], technology: Technology, power: Range | None, known: Circumstances) -> list[str]:
    notes = []
    if not technology.is_known:
        notes.append(f"the technology of '{known.device}' is not known: the range spans {technology.name}")
    if power is None:
        notes.append(NO_POWER)
    elif not known.time_s:
        notes.append(NO_TIME)
    uncounted = sum(op.status not in (COUNTED, "free") for op in ops)
    if uncounted:
        notes.append(f"without the arithmetic of {uncounted} ops that have no formula")
    return notes


def spread(joules: Range) -> RangeRow:
    return {"value": joules.value, "low": joules.low, "high": joules.high}
