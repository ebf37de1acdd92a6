"""Ways of timing one model, taken in turns: a machine that is busy or slow is so for all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean, median
from time import perf_counter

import torch

from torchgauge.measure import Budget, Subject, time_runs
from torchgauge.measure.measuring import module_paths
from torchgauge.measure.module_times import time_modules
from torchgauge.measure.sampler import sampling

FEWEST_RUNS = 3
FEWEST_TURNS = 3


@dataclass(frozen=True, slots=True)
class Effort:
    """At most `turns`, each way for about `seconds` in a turn, and no more turns once `budget_s` is spent."""

    turns: int
    seconds: float
    budget_s: float


@dataclass(slots=True)
class Turns:
    """Seconds of every run, by way: `headline` as the report takes them, `plain` in a loop around the model, `again` as
    the headline once more, `sampled` the same with the sampler on. `own_s` are the sums of the modules' own times."""

    headline: list[list[float]] = field(default_factory=list)
    plain: list[list[float]] = field(default_factory=list)
    again: list[list[float]] = field(default_factory=list)
    sampled: list[list[float]] = field(default_factory=list)
    own_s: list[float] = field(default_factory=list)
    sampler_shares: list[float] = field(default_factory=list)

    @property
    def headline_s(self) -> float:
        return median(_pooled(self.headline))

    @property
    def over_plain(self) -> float:
        return self.headline_s / median(_pooled(self.plain))

    @property
    def modules_share(self) -> float:
        """Of the headline's median in the same turn; the median over the turns."""
        return median(own / median(runs) for own, runs in zip(self.own_s, self.headline, strict=True))

    @property
    def sampler_excess(self) -> float:
        """What the sampler adds to the mean run: it wakes up ten times a second, which a median would not see."""
        return _excess(self.sampled, self.again)

    @property
    def noise(self) -> float:
        """The same comparison of two ways that do not differ."""
        return abs(_excess(self.headline, self.again))


def _pooled(turns: list[list[float]]) -> list[float]:
    return [seconds for runs in turns for seconds in runs]


def _excess(those: list[list[float]], these: list[list[float]]) -> float:
    return median(fmean(a) / fmean(b) for a, b in zip(those, these, strict=True)) - 1


def take_turns(subject: Subject, effort: Effort, *, on_cpu: bool) -> Turns:
    """Every turn begins with another way."""
    found = Turns()
    _plain_loop(subject, FEWEST_RUNS)
    runs = max(FEWEST_RUNS, round(effort.seconds / median(_plain_loop(subject, FEWEST_RUNS))))
    ways: list[Callable[[], None]] = [
        lambda: found.headline.append(_headline(subject, runs)),
        lambda: found.plain.append(_plain_loop(subject, runs)),
        lambda: found.again.append(_headline(subject, runs)),
        lambda: found.sampled.append(_sampled(subject, runs, found)),
    ]
    if on_cpu:
        ways.append(lambda: found.own_s.append(_modules_own(subject, runs)))
    begin, turn = perf_counter(), 0
    while turn < effort.turns and (turn < FEWEST_TURNS or perf_counter() - begin < effort.budget_s):
        for way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
            way()
        turn += 1
    return found


def _headline(subject: Subject, runs: int) -> list[float]:
    """The report's own timing; it warms up anew in every turn."""
    timed = time_runs(subject.run, Budget(seconds=1e9, precision=0.0, least=runs, most=runs, warmup_share=0.0))
    if timed.failure is not None:
        raise timed.failure
    return timed.seconds


def _plain_loop(subject: Subject, runs: int) -> list[float]:
    """What anybody would write."""
    seconds = []
    with torch.no_grad():
        for _ in range(runs):
            start = perf_counter()
            subject.model(*subject.args, **subject.kwargs)
            if subject.device.type == "cuda":
                torch.cuda.synchronize()
            seconds.append(perf_counter() - start)
    return seconds


def _sampled(subject: Subject, runs: int, found: Turns) -> list[float]:
    with sampling(subject.device) as samples:
        seconds = _headline(subject, runs)
    found.sampler_shares.append(samples.figures()["cost"]["share"] or 0.0)
    return seconds


def _modules_own(subject: Subject, runs: int) -> float:
    times = time_modules(subject.run, module_paths(subject.model), min(runs, 20))
    return sum(time.self_s for time in times.values())
