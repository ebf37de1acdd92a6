"""How a run speeds up with threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

import torch

from torchgauge.facts import OpRecord
from torchgauge.measure.joining import join
from torchgauge.measure.latency import Budget, time_runs
from torchgauge.measure.module_times import module_paths
from torchgauge.measure.op_times import OpTime, op_times
from torchgauge.measure.parts import Work, repeats
from torchgauge.measure.profile import profile_runs

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Scaling

# torch crashes where the system refuses to start so many.
MOST_THREADS = max(1024, os.cpu_count() or 1)
# Each number of threads gets this share of the time for the undisturbed runs.
_POINT_SHARE = 0.15
_PROFILED_RUNS = 3
# Kinds of ops with a smaller share of the time say nothing about threads.
_LEAST_SHARE = 0.01


@contextmanager
def thread_count(threads: int | None) -> Iterator[None]:
    """torch's intra-op threads for the length of the block; None leaves them."""
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        if threads is not None:
            torch.set_num_threads(before)


def thread_counts(most: int) -> list[int]:
    """1, 2, 4, … and the most."""
    counts = [1]
    while counts[-1] * 2 < most:
        counts.append(counts[-1] * 2)
    return counts if counts[-1] == most else [*counts, most]


def scaling(run: Callable[[], object], most: int, budget: Budget) -> list[Scaling]:
    """The run with every number of threads: time, speed-up over one thread, and efficiency."""
    rows: list[Scaling] = []
    for threads in thread_counts(most):
        with thread_count(threads):
            timed = time_runs(run, budget)
        if timed.failure is not None:
            raise timed.failure
        seconds = median(timed.seconds)
        speedup = rows[0]["median_s"] / seconds if rows else 1.0
        rows.append({"threads": threads, "median_s": seconds, "speedup": speedup, "efficiency": speedup / threads})
    return rows


def serial_share(one: float, many: float, threads: int) -> float | None:
    """The share that does not run in parallel, by Amdahl's law: `one` and `many` are the times with 1 and `threads`."""
    if threads < 2 or one <= 0:
        return None
    share = (many / one - 1 / threads) / (1 - 1 / threads)
    return min(1.0, max(0.0, share))


def measure_scaling(work: Work) -> None:
    """The run with 1, 2, … threads, and what of each kind of op does not get faster with them."""
    most = torch.get_num_threads()
    budget = replace(work.order.budget, seconds=_POINT_SHARE * work.order.budget.seconds)
    rows = scaling(work.run, most, budget)
    figures = work.figures["threads"] = {**(work.figures["threads"] or {}), "scaling": rows}
    runs = repeats(rows[0]["median_s"], work.order.budget, most=_PROFILED_RUNS)
    with thread_count(1):
        one = _op_times(work, runs)
    figures["serial_share"] = serial_shares(work.ops, one, _op_times(work, runs), most)


def _op_times(work: Work, runs: int) -> dict[int, OpTime]:
    found = profile_runs(work.run, module_paths(work.subject.model), runs, device=work.subject.device)
    return op_times([join(work.ops, run) for run in found], on_device=work.on_device)


def serial_shares(
    ops: Sequence[OpRecord], one: Mapping[int, OpTime], many: Mapping[int, OpTime], threads: int
) -> dict[str, float | None]:
    """By kind of op, those that take next to nothing left out; the slowest kind first."""
    seen = [op for op in ops if op.index in one and op.index in many]
    alone, together = _by_category(seen, one), _by_category(seen, many)
    whole = sum(alone.values())
    return {
        category: serial_share(alone[category], together[category], threads)
        for category in sorted(alone, key=lambda category: -alone[category])
        if alone[category] > _LEAST_SHARE * whole
    }


def _by_category(ops: Sequence[OpRecord], times: Mapping[int, OpTime]) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for op in ops:
        seconds[op.category] = seconds.get(op.category, 0.0) + times[op.index].time_s
    return seconds
