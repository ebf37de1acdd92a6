"""Two ways of timing one model, in turns of a few runs each: a machine that is busy or slow is so for both."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, median
from time import perf_counter

import torch

from torchgauge.measure import Budget, Subject, time_runs
from torchgauge.measure.sampler import sampling

FEWEST_PAIRS, MOST_PAIRS = 6, 400
# Enough pairs when the standard error is below this.
PRECISION = 0.003
# Short enough that the machine is the same for both of a pair.
BLOCK_S, FEWEST_RUNS, MOST_RUNS = 0.08, 3, 50
# Long enough that the sampler wakes up several times.
SAMPLED_S = 0.6


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median over pairs, and its standard error."""

    value: float
    error: float
    pairs: int

    @classmethod
    def of(cls, ratios: list[float]) -> Ratio:
        middle = median(ratios)
        # Of a normal distribution: 1.4826 deviations from the median are one from the mean, whose error a median has
        # 1.2533 times.
        spread = 1.4826 * median(abs(ratio - middle) for ratio in ratios)
        return cls(middle, 1.2533 * spread / math.sqrt(len(ratios)), len(ratios))

    def lies_within(self, low: float, high: float) -> bool:
        """Or is not distinguishable from one that does."""
        return low - 2 * self.error <= self.value <= high + 2 * self.error

    def __str__(self) -> str:
        return f"{self.value:.3f} ±{self.error:.3f}"


def in_turns(one: Callable[[], float], other: Callable[[], float], seconds: float) -> Ratio:
    """`one` over `other`, until the ratio is known well or the time is over; each goes first every second time."""
    ratios: list[float] = []
    begin = perf_counter()
    while True:
        if len(ratios) % 2:
            bottom, top = other(), one()
        else:
            top, bottom = one(), other()
        ratios.append(top / bottom)
        found, count = Ratio.of(ratios), len(ratios)
        if count >= FEWEST_PAIRS and (found.error <= PRECISION or perf_counter() - begin > seconds):
            return found
        if count >= MOST_PAIRS:
            return found


def headline_over_plain(subject: Subject, seconds: float) -> Ratio:
    runs = _runs(subject, BLOCK_S)
    return in_turns(lambda: median(_headline(subject, runs)), lambda: median(_plain_loop(subject, runs)), seconds)


def sampler_on_over_off(subject: Subject, seconds: float) -> tuple[Ratio, float]:
    """Mean runs: the sampler wakes up five times a second, which a median would not see. And the share of one core's
    time that it says it took."""
    runs = _runs(subject, SAMPLED_S, most=MOST_RUNS * 20)
    shares: list[float] = []

    def sampled() -> float:
        with sampling(subject.device) as samples:
            seconds = _headline(subject, runs)
        shares.append(samples.figures()["cost"]["share"] or 0.0)
        return fmean(seconds)

    return in_turns(sampled, lambda: fmean(_headline(subject, runs)), seconds), median(shares)


def _runs(subject: Subject, seconds: float, most: int = MOST_RUNS) -> int:
    once = median(_plain_loop(subject, FEWEST_RUNS))
    return min(most, max(FEWEST_RUNS, round(seconds / once)))


def _headline(subject: Subject, runs: int) -> list[float]:
    """The report's own timing: a cold run, then those that count."""
    timed = time_runs(subject.run, Budget(seconds=math.inf, precision=0.0, least=runs, most=runs, warmup_share=0.0))
    if timed.failure is not None:
        raise timed.failure
    return timed.seconds


def _plain_loop(subject: Subject, runs: int) -> list[float]:
    """What anybody would write."""
    seconds = []
    with torch.no_grad():
        for _ in range(1 + runs):
            start = perf_counter()
            subject.model(*subject.args, **subject.kwargs)
            if subject.device.type == "cuda":
                torch.cuda.synchronize()
            seconds.append(perf_counter() - start)
    return seconds[1:]
