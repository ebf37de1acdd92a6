"""Two models timed in alternation, so that a machine that slows down affects both."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

import torch

from torchgauge.measure.latency import Clock, median_interval
from torchgauge.registry import collector_paused

if TYPE_CHECKING:
    from torchgauge.facts.document_types import MeasuredTime


@dataclass(frozen=True, slots=True)
class Switches:
    threads: int
    matmul_precision: str
    cudnn_benchmark: bool

    @classmethod
    def now(cls) -> Switches:
        return cls(torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark)

    def apply(self) -> bool:
        """Returns whether anything changed. Only different settings are written, because writing takes time."""
        before = Switches.now()
        if self.threads != before.threads:
            torch.set_num_threads(self.threads)
        if self.matmul_precision != before.matmul_precision:
            torch.set_float32_matmul_precision(self.matmul_precision)
        if self.cudnn_benchmark != before.cudnn_benchmark:
            torch.backends.cudnn.benchmark = self.cudnn_benchmark
        return self != before


@contextmanager
def switches_kept() -> Iterator[None]:
    before, limit = Switches.now(), sys.getrecursionlimit()
    try:
        yield
    finally:
        before.apply()
        sys.setrecursionlimit(limit)  # the compiler raises it


# With fewer, the whole range is not a 95 % interval.
LEAST_PAIRS = 6
# Rounds of a comparison at different times. With only two, another speed of the machine is often outside their range.
ROUNDS = 4
# On a noisy machine, up to this many budgets are spent to reach this precision of the ratio; the warm-up's share.
_MAX_BUDGETS, _PRECISION, _WARMUP_SHARE = 3.0, 0.02, 0.15
# Up to this many budgets for enough pairs of long runs.
_MAX_BUDGETS_OF_LONG_RUNS = 20.0
# A round with a wider interval of the ratio (±10 %) cannot resolve most gains.
_MAX_INTERVAL_WIDTH = 0.2
# Shorter samples are dominated by the clock and by interruptions.
_SAMPLE_S, _MAX_REPEATS = 5e-3, 1000
_WARMUP_RUNS = 3


class Runs(Protocol):
    """`run` returns when its work is done, under the settings `switches`. One run does the work of `samples` runs of
    the other side."""

    @property
    def run(self) -> Callable[[], object]: ...
    @property
    def switches(self) -> Switches: ...
    @property
    def samples(self) -> int: ...


@dataclass(slots=True)
class Paired:
    """Logarithms of the ratio of times, the second over the first, one for each pair of consecutive runs. `floor` is
    the difference between two equal models, which their placement in memory causes and more pairs do not average out.
    `earlier` is a round of the same comparison at another time, because consecutive runs do not show changes that last
    for seconds. `others_share` is the share of the machine that other processes used during the runs.
    `in_second_process`: this round was measured there."""

    logs: list[float] = field(default_factory=list)
    floor: float = 0.0
    earlier: Paired | None = None
    others_share: float | None = None
    in_second_process: bool = False

    @property
    def rounds(self) -> list[list[float]]:
        return [*(self.earlier.rounds if self.earlier else []), self.logs]

    @property
    def gain(self) -> float | None:
        """The share of the first's time that the second saves: the median over rounds of the median pair, so that a
        round with more pairs does not count more."""
        medians = [median(logs) for logs in self.rounds if logs]
        return 1 - math.exp(median(medians)) if medians else None

    @property
    def spread(self) -> tuple[float, float] | None:
        """The 95 % interval of the median logarithm, from order statistics, the widest over all rounds; None if there
        are too few pairs."""
        if any(len(logs) < LEAST_PAIRS for logs in self.rounds):
            return None
        lows, highs = zip(*map(median_interval, self.rounds), strict=True)
        return min(lows), max(highs)

    @property
    def is_settled(self) -> bool:
        """Whether no further rounds are needed."""
        return len(self.rounds) >= ROUNDS or self.spread is None

    @property
    def most_foreign(self) -> float:
        """The share of the machine that other processes used, in the round with the most."""
        before = self.earlier.most_foreign if self.earlier else 0.0
        return max(before, self.others_share or 0.0)

    @property
    def disagrees(self) -> bool:
        """Whether one round found it faster and another slower."""
        medians = [median(logs) for logs in self.rounds if logs]
        return bool(medians) and min(medians) < -self.floor and max(medians) > self.floor

    @property
    def is_lost_elsewhere(self) -> bool:
        """Whether it was faster in this process but not in the second one."""
        before, own = self.earlier, replace(self, earlier=None)
        if before is None or not self.in_second_process or before.interval is None or own.interval is None:
            return False
        return before.interval[0] > 0 and own.interval[0] <= 0

    @property
    def is_noisy(self) -> bool:
        return any(
            high - low > _MAX_INTERVAL_WIDTH for low, high in (median_interval(logs) for logs in self.rounds if logs)
        )

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the gain, including the floor."""
        spread = self.spread
        return None if spread is None else (1 - math.exp(spread[1] + self.floor), 1 - math.exp(spread[0] - self.floor))

    def figures(self) -> MeasuredTime:
        interval = self.interval
        return {
            "gain": self.gain,
            "ci95": None if interval is None else list(interval),
            "pairs": sum(map(len, self.rounds)),
            "rounds": len(self.rounds),
            "floor": self.floor,
            "other_processes_share": self.most_foreign,
            "second_process_gain": replace(self, earlier=None).gain if self.in_second_process else None,
        }


def time_pairs(first: Runs, second: Runs, seconds: float, clock: Clock = perf_counter) -> Paired:
    """Run both in turn for `seconds`, or longer if needed. The order alternates from pair to pair, so that running
    second gives neither an advantage."""
    paired = Paired()
    with collector_paused():  # a collection during a run would be charged to it
        repeats = [_warm_up(side, _WARMUP_SHARE * seconds, clock) for side in (first, second)]
        begin = clock()
        while not _is_enough(paired, clock() - begin, seconds):
            times = [0.0, 0.0]
            for at in (0, 1) if len(paired.logs) % 2 == 0 else (1, 0):
                times[at] = _timed((first, second)[at], repeats[at], clock)
            paired.logs.append(math.log(times[1] / second.samples) - math.log(times[0] / first.samples))
    return paired


def _is_enough(paired: Paired, spent: float, seconds: float) -> bool:
    """Decided by the precision, never by the result: stopping at the first interval above 0 would always find a
    gain."""
    if not paired.logs or spent < seconds:
        return False
    if len(paired.logs) < LEAST_PAIRS:
        return spent >= _MAX_BUDGETS_OF_LONG_RUNS * seconds
    if spent >= _MAX_BUDGETS * seconds:
        return True
    spread = paired.spread
    return spread is not None and spread[1] - spread[0] <= 2 * _PRECISION


def _warm_up(side: Runs, seconds: float, clock: Clock) -> int:
    """The number of runs per sample. The first run may compile."""
    _timed(side, 1, clock)
    begin, fastest, runs = clock(), math.inf, 0
    while runs < _WARMUP_RUNS or clock() - begin < seconds:
        fastest = min(fastest, _timed(side, 1, clock))
        runs += 1
        if clock() - begin > 2 * seconds:
            break
    return max(1, min(_MAX_REPEATS, math.ceil(_SAMPLE_S / max(fastest, 1e-9))))


def _timed(side: Runs, repeats: int, clock: Clock) -> float:
    """Seconds of one run: the median of several for short runs, which excludes interruptions."""
    before = Switches.now()
    marks = []
    try:
        if side.switches.apply():
            side.run()  # new threads start, other kernels are chosen
        for _ in range(repeats):
            marks.append(clock())
            side.run()
        marks.append(clock())
    finally:
        before.apply()
    return max(median(after - mark for mark, after in pairwise(marks)), 1e-9)
