"""How long one run takes: warmed up until stable, repeated until the median is known, nothing attached; and the load of
the machine during the runs."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median, pstdev
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

import psutil

from torchgauge.registry import collector_paused

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Latency
    from torchgauge.facts.document_types import Surroundings as SurroundingFigures


Run = TypeVar("Run")

# The 97.5 % point of the normal distribution: 95 % lie within.
_Z95 = 1.959963984540054


def median_interval(seconds: Sequence[float]) -> tuple[float, float]:
    """The 95 % confidence interval of the median, from order statistics: no assumption on the distribution.

    The ranks are those of the binomial distribution's normal approximation (Conover, Practical Nonparametric
    Statistics, 3.2); with fewer than six runs it is the whole range, and promises less.
    """
    ordered = sorted(seconds)
    count = len(ordered)
    reach = _Z95 * math.sqrt(count) / 2
    low = max(0, math.floor(count / 2 - reach) - 1)
    high = min(count - 1, math.ceil(count / 2 + reach))
    return ordered[low], ordered[high]


def relative_half_width(seconds: Sequence[float]) -> float:
    """Half of the median's confidence interval, as a share of the median."""
    low, high = median_interval(seconds)
    middle = median(seconds)
    return (high - low) / 2 / middle if middle > 0 else 0.0


def percentile(seconds: Sequence[float], share: float) -> float:
    """Linear between the two closest ranks."""
    ordered = sorted(seconds)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def middle_half(runs: Sequence[Run], total: Callable[[Run], float]) -> list[Run]:
    """The runs whose totals are neither among the fastest nor the slowest quarter: the averages of their parts add up
    to a total near the median; medians of the parts would not."""
    ordered = sorted(runs, key=total)
    cut = len(ordered) // 4
    return ordered[cut : len(ordered) - cut]


def nearest(runs: Sequence[Run], total: Callable[[Run], float], target: float, share: float = 0.5) -> list[Run]:
    """The share of runs whose totals are nearest to the target: their parts are representative of a run of that
    length."""
    return sorted(runs, key=lambda run: abs(total(run) - target))[: math.ceil(share * len(runs))]


_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
# Other processes that use more than this share of the machine may slow the runs; on an idle machine the usual
# background work stays below it.
_LOUD_SHARE = 0.10


@dataclass(slots=True)
class Surroundings:
    """Shares are of all cores together, over the block."""

    others_share: float | None = None
    own_share: float | None = None
    load_average: float | None = None
    governor: str | None = None

    @property
    def is_loud(self) -> bool:
        return self.others_share is not None and self.others_share > _LOUD_SHARE

    def figures(self) -> SurroundingFigures:
        return {
            "other_processes_share": self.others_share,
            "own_share": self.own_share,
            "load_average": self.load_average,
            "governor": self.governor,
        }


@contextmanager
def surroundings_noted() -> Iterator[Surroundings]:
    """Yields a record that is filled in when the block ends."""
    noted = Surroundings(governor=governor())
    process = psutil.Process()
    begin, busy, own = perf_counter(), busy_seconds(psutil.cpu_times()), _own_seconds(process)
    try:
        yield noted
    finally:
        capacity = (perf_counter() - begin) * (os.cpu_count() or 1)
        if capacity > 0:
            noted.own_share = (_own_seconds(process) - own) / capacity
            noted.others_share = max(0.0, (busy_seconds(psutil.cpu_times()) - busy) / capacity - noted.own_share)
        noted.load_average = psutil.getloadavg()[0]


def governor() -> str | None:
    try:
        return _GOVERNOR.read_text().strip()
    except OSError:
        return None


def busy_seconds(times: Any) -> float:
    """Seconds in which the processor worked, from psutil's CPU times."""
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))


def _own_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


Clock = Callable[[], float]

_WINDOW_RUNS = 5
_STABLE_WITHIN = 0.05
_RUNS_BETWEEN_CALLS = 3


@dataclass(frozen=True, slots=True)
class Budget:
    """When to stop: the median known to `precision`, or `seconds` spent. `least` runs are made in any case, and
    `settle_s` of them where the budget allows: a machine's speed changes from second to second, which the spread of
    neighbouring runs does not show."""

    seconds: float = 10.0
    settle_s: float = 2.0
    precision: float = 0.02
    least: int = 10
    most: int = 10_000
    warmup_share: float = 0.25


@dataclass(slots=True)
class Timed:
    """The runs of one measurement, in order: warm-up runs, then those that count. `failure` is the exception that ended
    it early; the runs before it count, or the warm-up runs if there are no others."""

    cold_s: float | None = None
    warm: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    failure: BaseException | None = None

    @property
    def warmup(self) -> int:
        return len(self.warm)

    @property
    def is_warm(self) -> bool:
        """Whether the last two windows of the warm-up agree."""
        if len(self.warm) < 2 * _WINDOW_RUNS:
            return False
        before, after = median(self.warm[-2 * _WINDOW_RUNS : -_WINDOW_RUNS]), median(self.warm[-_WINDOW_RUNS:])
        return abs(after - before) <= _STABLE_WITHIN * before

    @property
    def is_warmup_only(self) -> bool:
        return bool(self.warm) and not self.seconds

    @property
    def precision(self) -> float | None:
        return relative_half_width(self.seconds) if self.seconds else None

    @property
    def drift(self) -> float | None:
        """By how much the median of the second half differs from that of the first."""
        half = len(self.seconds) // 2
        if not half:
            return None
        before = median(self.seconds[:half])
        return median(self.seconds[half:]) / before - 1 if before > 0 else None

    def is_enough(self, limits: Budget, spent: float) -> bool:
        """Whether the median is known to the precision of the budget, or the budget is spent."""
        runs = len(self.seconds)
        if runs < limits.least:
            # A run of minutes is not repeated ten times.
            return runs >= 1 and spent > 2 * limits.seconds
        if runs >= limits.most or spent >= limits.seconds:
            return True
        # Computing the interval costs a sort, so it is done less and less often.
        if runs % max(1, runs // 10) or sum(self.seconds) < min(limits.settle_s, limits.seconds / 5):
            return False
        is_steady = self.drift is not None and abs(self.drift) <= limits.precision
        return is_steady and relative_half_width(self.seconds) <= limits.precision / 2

    def figures(self, items: int = 1) -> Latency | None:
        """The `latency` member of the JSON; `items` are the samples of one run. None if no run was timed."""
        counted = self.seconds or self.warm
        if not counted:
            return None
        middle = median(counted)
        return {
            "median_s": middle,
            "mean_s": fmean(counted),
            "min_s": min(counted),
            "max_s": max(counted),
            "std_s": pstdev(counted),
            "p90_s": percentile(counted, 0.9),
            "p99_s": percentile(counted, 0.99),
            "ci95_s": list(median_interval(counted)),
            "runs": len(counted),
            "cold_s": self.cold_s,
            "warmup_runs": self.warmup,
            "throughput_per_s": items / middle if middle > 0 else None,
        }


def time_runs(
    run: Callable[[], object],
    budget: Budget | None = None,
    *,
    between: Callable[[], object] | None = None,
    clock: Clock = perf_counter,
) -> Timed:
    """Time `run`, which returns when its work is done. An exception ends the measurement and is kept.

    `between` is called every few runs and not timed; it measures under the same conditions."""
    limits = budget or Budget()
    timed = Timed()
    gc.collect()
    with collector_paused():  # a collection during a run would be charged to the model
        try:
            begin = clock()
            timed.cold_s = _once(run, clock)
            # Warm up until two neighbouring windows agree: by then caches, clocks and just-in-time compilers have
            # settled. The first run may take longer than all that follow, so the time starts after it. A run longer
            # than the whole budget is not repeated.
            warming = clock()
            while (
                timed.cold_s < limits.seconds
                and clock() - warming < limits.warmup_share * limits.seconds
                and not timed.is_warm
            ):
                timed.warm.append(_once(run, clock))
            while not timed.is_enough(limits, clock() - begin):
                timed.seconds.append(_once(run, clock))
                if between is not None and len(timed.seconds) % _RUNS_BETWEEN_CALLS == 0:
                    between()
        # The model's own code may raise anything; what was measured until then is kept.
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            timed.failure = error
    return timed


def _once(run: Callable[[], object], clock: Clock) -> float:
    start = clock()
    run()
    return clock() - start
