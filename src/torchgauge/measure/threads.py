"""How a run speeds up with threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch

from torchgauge.measure.latency import Budget, time_runs


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


def scaling(run: Callable[[], object], most: int, budget: Budget) -> list[dict[str, Any]]:
    """The run with every number of threads: time, speed-up over one thread, and efficiency."""
    rows: list[dict[str, Any]] = []
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
