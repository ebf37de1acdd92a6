"""What the machine does while the model runs: sampled quantities and the processor's counters."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

from torchgauge.measure.counters import Counted, counting
from torchgauge.measure.parts import Work
from torchgauge.measure.sampler import sampling

# Of the time for the undisturbed runs.
_WATCHED_SHARE = 0.2
_LEAST_RUNS = 3


def watch_machine(work: Work) -> None:
    """Runs of their own: the total comes from runs with nothing beside them."""
    # The counters are opened first: the sampler's thread is not the model's.
    with counting() as counted, sampling(work.subject.device) as samples:
        runs = _repeat(work.run, _WATCHED_SHARE * work.order.budget.seconds)
    work.figures["system"] = samples.figures()
    work.figures["counters"] = _counters(work, counted, runs)


def _repeat(run: Callable[[], None], seconds: float) -> int:
    runs, end = 0, perf_counter() + seconds
    while runs < _LEAST_RUNS or perf_counter() < end:
        run()
        runs += 1
    return runs


def _counters(work: Work, counted: Counted, runs: int) -> dict[str, Any]:
    if work.on_device:
        return {"absent": {"counters": "the work is on the device, and the processor counts its own"}}
    peaks = work.order.peaks
    flops = sum(op.cost.flops for op in work.ops)
    return counted.figures(runs=runs, flops=flops, bytes_per_s=peaks.bytes_per_s if peaks else None)
