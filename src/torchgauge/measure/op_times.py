"""Times of the static ops, from profiled runs, and what they mean against the device's roof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from torchgauge.facts import FREE, OpRecord
from torchgauge.hardware import Peaks, Roof, allows_tf32
from torchgauge.hardware.roofline import LAUNCH
from torchgauge.measure.joining import Joined


@dataclass(frozen=True, slots=True)
class OpTime:
    """Means over the profiled runs: `time_s` on the device where there is one, else on the CPU; `idle_s` is how long
    the device waited for the op."""

    time_s: float
    cpu_s: float
    idle_s: float
    kernels: tuple[str, ...]


def op_times(runs: Sequence[Mapping[int, Joined]], *, on_device: bool) -> dict[int, OpTime]:
    """By index, for the ops seen in every run."""
    common = set(runs[0]).intersection(*runs[1:]) if runs else set()
    times: dict[int, OpTime] = {}
    for index in sorted(common):
        calls = [run[index] for run in runs]
        cpu = fmean(call.event.duration_ns for call in calls) * 1e-9
        device = fmean(call.device_ns for call in calls) * 1e-9
        idle = fmean(call.idle_ns for call in calls) * 1e-9
        names = tuple(dict.fromkeys(kernel.name for kernel in calls[-1].kernels))
        times[index] = OpTime(device if on_device else cpu, cpu, idle, names)
    return times


def op_figures(op: OpRecord, time: OpTime, peaks: Peaks | None, *, least_s: float) -> dict[str, Any]:
    """The measured members of an op's row; `least_s` is what any op takes here, however little it does."""
    cost = op.signature.cost
    moved = cost.bytes_read + cost.bytes_written
    roof = roof_of(peaks, op.signature.dtype, tf32=may_use_tf32(op))
    seconds = time.time_s
    works = bool(cost.flops or moved)
    bound = None
    if works and seconds:
        # On a device an op is launch-bound when the device waited longer for it than it worked on it; on the CPU when
        # it took hardly longer than an op that does nothing.
        is_launch_bound = time.idle_s > seconds if time.kernels else seconds < 2 * least_s
        bound = LAUNCH if is_launch_bound else roof.bound(cost.flops, moved) if roof else None
    return {
        "time_s": seconds,
        "cpu_time_s": time.cpu_s,
        "kernels": list(time.kernels),
        "flops_per_s": cost.flops / seconds if seconds and cost.flops else None,
        "bytes_per_s": moved / seconds if seconds and moved else None,
        "roof_share": roof.least_seconds(cost.flops, moved) / seconds if roof and seconds and works else None,
        "bound": bound,
    }


def may_use_tf32(op: OpRecord) -> bool:
    """torch has a switch for matmuls and another for cuDNN's convolutions and RNNs."""
    return allows_tf32("convolution" if op.signature.category in ("convolution", "recurrent") else "matmul")


def roof_of(peaks: Peaks | None, dtype: str | None, *, tf32: bool) -> Roof | None:
    rate = peaks.rate(dtype, tf32=tf32) if peaks else None
    if peaks is None or rate is None or peaks.bytes_per_s is None:
        return None
    return Roof(rate, peaks.bytes_per_s)


def least_time(ops: Sequence[OpRecord], times: Mapping[int, OpTime]) -> float:
    """The median time of the ops that only look at their tensors differently: the cost of dispatching at all."""
    seconds = [times[op.index].cpu_s for op in ops if op.signature.status == FREE and op.index in times]
    return median(seconds) if seconds else 0.0
