"""How long one run takes: warmed up until stable, repeated until the median is known, nothing attached."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import fmean, median, pstdev
from time import perf_counter
from typing import TYPE_CHECKING

from torchgauge.capture.surroundings import no_collections
from torchgauge.measure.samples import median_interval, percentile, relative_half_width

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Latency

Clock = Callable[[], float]


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
    """The runs of one measurement, in order: those that warmed up, then those that count. `failure` is what ended it
    early; the runs before it count, those that warmed up where there are no others."""

    cold_s: float | None = None
    warm: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    failure: BaseException | None = None

    @property
    def warmup(self) -> int:
        return len(self.warm)

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

    def figures(self, items: int = 1) -> Latency | None:
        """The contract's `latency`, `items` being the samples of one run; None where no run was timed."""
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
    beside: Callable[[], object] | None = None,
    clock: Clock = perf_counter,
) -> Timed:
    """Time `run`, which returns when its work is done. What it raises ends the measurement and is kept.

    `beside` is done every few runs and not timed: what it measures, it measures while the machine is as it is for the
    runs."""
    limits = budget or Budget()
    timed = Timed()
    gc.collect()
    with no_collections():  # a collection during a run would be charged to the model
        try:
            begin = clock()
            timed.cold_s = _once(run, clock)
            # The first run may take longer than all that follow: its time is not the warm-up's. A run that takes
            # longer than all may is not repeated for that.
            if timed.cold_s < limits.seconds:
                for seconds in _warm_up(run, limits, clock(), clock):
                    timed.warm.append(seconds)
            while not _is_enough(timed, limits, clock() - begin):
                timed.seconds.append(_once(run, clock))
                if beside is not None and len(timed.seconds) % _BESIDE_EVERY == 0:
                    beside()
        # The model's own code may raise anything; what was measured until then is kept.
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            timed.failure = error
    return timed


def _warm_up(run: Callable[[], object], limits: Budget, begin: float, clock: Clock) -> Iterator[float]:
    """Run until two neighbouring windows agree: caches, clocks and just-in-time compilers have settled then."""
    seconds: list[float] = []
    while clock() - begin < limits.warmup_share * limits.seconds:
        seconds.append(_once(run, clock))
        yield seconds[-1]
        if len(seconds) >= 2 * _WINDOW_RUNS:
            before, after = median(seconds[-2 * _WINDOW_RUNS : -_WINDOW_RUNS]), median(seconds[-_WINDOW_RUNS:])
            if abs(after - before) <= _STABLE_WITHIN * before:
                return


_WINDOW_RUNS = 5
_BESIDE_EVERY = 3
_STABLE_WITHIN = 0.05


def _is_enough(timed: Timed, limits: Budget, spent: float) -> bool:
    runs = len(timed.seconds)
    if runs < limits.least:
        # A run of minutes is not repeated ten times.
        return runs >= 1 and spent > 2 * limits.seconds
    if runs >= limits.most or spent >= limits.seconds:
        return True
    # The interval costs a sort: looked at ever more rarely.
    if runs % max(1, runs // 10) or sum(timed.seconds) < min(limits.settle_s, limits.seconds / 5):
        return False
    is_steady = timed.drift is not None and abs(timed.drift) <= limits.precision
    return is_steady and relative_half_width(timed.seconds) <= limits.precision / 2


def _once(run: Callable[[], object], clock: Clock) -> float:
    start = clock()
    run()
    return clock() - start
