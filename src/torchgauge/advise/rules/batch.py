"""The batch from which on weights are read for enough samples to keep the arithmetic busy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchgauge.advise.evidence import Evidence
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule
from torchgauge.facts import OpRecord
from torchgauge.hardware import Peaks, Roof

# Time per sample may be this much above what it falls to at last; less gain is not worth the latency.
NEAR, LEAST_GAIN = 1.1, 0.25
LARGEST_FACTOR = 1024


@dataclass(frozen=True, slots=True)
class Load:
    """What ops ask of the device: `fixed` bytes are their weights, the rest grows with the batch."""

    roof: Roof
    flops: int
    fixed: int
    growing: int

    def seconds(self, factor: float) -> float:
        return self.roof.least_seconds(factor * self.flops, self.fixed + factor * self.growing)


@rule("batch-at-knee", family="batch", option="batch")
def batch_at_knee(evidence: Evidence) -> Iterator[Advice]:
    inputs, peaks = evidence.capture.inputs, evidence.peaks
    if evidence.is_train or peaks is None or not inputs or not inputs[0].spec.shape:
        return
    loads = _loads(evidence, peaks)
    factor = knee(loads)
    gain = 1 - _per_sample(loads, factor) / _per_sample(loads, 1) if factor > 1 else 0.0
    if gain < LEAST_GAIN:
        return
    batch = inputs[0].spec.shape[0]
    fixed, growing = sum(load.fixed for load in loads), sum(load.growing for load in loads)
    yield Advice(
        rule="batch-at-knee",
        where=Where(module=""),
        evidence={
            "batch": batch,
            "knee_batch": batch * factor,
            "weight_share_of_bytes_moved": fixed / max(fixed + growing, 1),
            "flops_per_byte": sum(load.flops for load in loads) / max(fixed + growing, 1),
            "ridge_flops_per_byte": max(load.roof.ridge for load in loads),
            "peak_activation_bytes_there": evidence.totals.peak_activation_bytes * factor,
            "device": peaks.name,
        },
        recommendation="use larger batches: weights are read once per batch, so each sample takes less time",
        change=None,
        expected_gain=Gain("time_s", 0.5 * gain, gain, "roofline: time per sample at the knee, and now"),
        risk="each batch takes longer and needs more memory: latency does not improve",
        confidence="medium",
    )


def knee(loads: Sequence[Load]) -> int:
    """The least power of two to multiply the batch by, from which on hardly anything is gained."""
    limit = NEAR * _per_sample(loads, LARGEST_FACTOR)
    factor = 1
    while factor < LARGEST_FACTOR and _per_sample(loads, factor) > limit:
        factor *= 2
    return factor


def _per_sample(loads: Sequence[Load], factor: int) -> float:
    return sum(load.seconds(factor) for load in loads) / factor


def _loads(evidence: Evidence, peaks: Peaks) -> list[Load]:
    """What the ops ask of the device; equal calls, which share a signature, are one load of so many times as much."""
    calls: Counter[tuple[int, int]] = Counter()
    first: dict[tuple[int, int], OpRecord] = {}
    for op in evidence.forward:
        key = (id(op.signature), len(op.weights))
        calls[key] += 1
        first.setdefault(key, op)
    loads, params = [], evidence.params
    for key, times in calls.items():
        signature = first[key].signature
        held = sum(params[name].spec.nbytes for name in first[key].weights if name in params)
        cost, rate = signature.cost, peaks.rate(signature.dtype)
        moved = cost.bytes_read + cost.bytes_written
        if rate and peaks.bytes_per_s is not None and moved:
            fixed = 0 if signature.category == "embedding" else min(held, cost.bytes_read)
            roof = Roof(rate, peaks.bytes_per_s)
            loads.append(Load(roof, times * cost.flops, times * fixed, times * (moved - fixed)))
    return loads
