"""Which ops and modules take the energy of a run.

The device always takes its waiting power, and every op adds to that. The addition is measured by running the op alone
in a loop (heavy kinds of ops), or assumed to be as much per second as that of the others (light ones). Nothing is
fitted to the whole: energy that the parts do not explain is reported as a separate figure.

    energy of an op = added joules + waiting watts × (its time + its share of the time in which nothing ran)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchgauge.energy.energy_window import EnergyWindow
from torchgauge.facts import FREE, OpRecord, Signature
from torchgauge.measure.module_times import inclusive_sums
from torchgauge.measure.profile import OpTime
from torchgauge.registry import grouped

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Attribution


Spec = tuple[tuple[int, ...], str]
# Op, overload, distinct inputs, first output: the same from a static op and from a real call.
Key = tuple[str, str, tuple[Spec, ...], Spec | None]


@dataclass(frozen=True, slots=True)
class OpGroup:
    """`seconds` is the time of all its calls in one run."""

    key: Key
    indices: tuple[int, ...]
    seconds: float

    @property
    def seconds_each(self) -> float:
        return self.seconds / len(self.indices)


def key_of(signature: Signature) -> Key:
    specs = [(spec.shape, spec.dtype) for spec in signature.inputs]
    first = next(((spec.shape, spec.dtype) for spec in signature.outputs), None)
    return signature.op, signature.overload, tuple(specs), first


def op_groups_of(ops: Sequence[OpRecord], times: Mapping[int, OpTime]) -> list[OpGroup]:
    """Groups of the ops that were timed and do work, the one that takes longest first."""
    groups = grouped((key_of(op.signature), op.index) for op in ops if op.index in times and op.status != FREE)
    kinds = [OpGroup(key, tuple(found), sum(times[index].time_s for index in found)) for key, found in groups.items()]
    return sorted(kinds, key=lambda kind: -kind.seconds)


def heavy_op_groups(kinds: Sequence[OpGroup], *, share: float, most: int) -> list[OpGroup]:
    """The groups that make up `share` of the time, at most `most` of them."""
    total, chosen, covered = sum(kind.seconds for kind in kinds), [], 0.0
    for kind in kinds[:most]:
        if covered >= share * total or not kind.seconds:
            break
        chosen.append(kind)
        covered += kind.seconds
    return chosen


REPLAYED, BY_TIME = "ops replayed", "shared by time"


@dataclass(frozen=True, slots=True)
class Replayed:
    """A kind of op in a loop: `span` has calls for iterations."""

    kind: OpGroup
    span: EnergyWindow
    is_graph: bool = False

    def added_each_j(self, waiting_w: float) -> float:
        return max(0.0, (self.span.watts - waiting_w) * self.span.seconds_each)


@dataclass(frozen=True, slots=True)
class Whole:
    """One measured run: its energy and duration; `busy_s` is the time in which ops of a profiled run were working."""

    joules: float
    seconds: float
    busy_s: float
    waiting_w: float

    @property
    def gap_s(self) -> float:
        return max(0.0, self.seconds - self.busy_s)

    @property
    def stretch(self) -> float:
        """A profiler slows a run down, and streams overlap: the parts last no longer than the run."""
        return min(1.0, self.seconds / self.busy_s) if self.busy_s else 1.0


@dataclass(frozen=True, slots=True)
class Attributed:
    figures: Attribution
    ops: Mapping[int, float] = field(default_factory=dict)
    modules: Mapping[str, float] = field(default_factory=dict)


def attribute(
    ops: Sequence[OpRecord],
    times: Mapping[int, OpTime],
    whole: Whole,
    replayed: Sequence[Replayed],
    refused: Mapping[str, str] | None = None,
) -> Attributed:
    """Joules by op and by module; `refused` are ops that could not be run alone, with the reason."""
    # Added power of light ops: the mean of the heavy ones; without any, everything above the waiting power.
    worked = sum(time.time_s for time in times.values())
    heavy_s = sum(found.kind.seconds for found in replayed)
    if heavy_s:
        light_w = sum(found.added_each_j(whole.waiting_w) * len(found.kind.indices) for found in replayed) / heavy_s
    else:
        above = whole.joules - whole.waiting_w * whole.seconds
        light_w = max(0.0, above / worked) if worked else 0.0
    added = {index: light_w * time.time_s for index, time in times.items()}
    for found in replayed:
        added |= dict.fromkeys(found.kind.indices, found.added_each_j(whole.waiting_w))
    # Which op the device waited for; if unknown, by time.
    waited = sum(time.idle_s for time in times.values())
    if waited:
        gaps = {index: time.idle_s / waited for index, time in times.items()}
    else:
        gaps = {index: time.time_s / worked if worked else 0.0 for index, time in times.items()}
    by_op = {
        index: added[index] + whole.waiting_w * (time.time_s * whole.stretch + whole.gap_s * gaps[index])
        for index, time in times.items()
    }
    modules = inclusive_sums((op.module, by_op[op.index]) for op in ops if op.index in by_op)
    return Attributed(_figures(by_op, times, whole, replayed, refused or {}), by_op, modules)


def _figures(
    by_op: Mapping[int, float],
    times: Mapping[int, OpTime],
    whole: Whole,
    replayed: Sequence[Replayed],
    refused: Mapping[str, str],
) -> Attribution:
    explained = sum(by_op.values())
    worked = sum(time.time_s for time in times.values())
    heavy = sum(found.kind.seconds for found in replayed)
    return {
        "method": REPLAYED if replayed else BY_TIME,
        # Parts that are shares of the whole always add up to it, which explains nothing.
        "explained_share": explained / whole.joules if replayed and whole.joules else None,
        "residue_j": whole.joules - explained,
        "replayed_time_share": heavy / worked if worked else None,
        "waiting_watts": whole.waiting_w,
        "busy_s": whole.busy_s,
        "gap_s": whole.gap_s,
        "gap_joules": whole.gap_s * whole.waiting_w,
        # `replayed_s` far below `time_s` means that the loop ran from a cache that the model does not have.
        "kinds": [
            {
                "op": found.kind.key[0],
                "input_shapes": [list(shape) for shape, _ in found.kind.key[2]],
                "calls": len(found.kind.indices),
                "time_s": found.kind.seconds_each,
                "replayed_s": found.span.seconds_each,
                "watts": found.span.watts,
                "added_j": found.added_each_j(whole.waiting_w),
                "is_graph": found.is_graph,
            }
            for found in replayed
        ],
        "refused": [{"op": op, "reason": reason} for op, reason in refused.items()],
    }
