"""A meter and a clock with scripted readings: for tests, here and in code that builds on torchgauge."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from torchgauge.energy.meter import JOULES, Reading, Unwrapped
from torchgauge.measure.absence import Absent


@dataclass(slots=True)
class ReplayClock:
    """A clock that advances only by `sleep`."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass(slots=True)
class ReplayMeter:
    """Counts what a device of `watts` consumes: `add` puts joules on top. It changes at multiples of its period.

    `wraps_at_j` makes it turn, `stalls_at_s` stop counting, `vanishes_at_s` stop answering.
    """

    clock: ReplayClock
    watts: Callable[[float], float] | float = 0.0
    covers: str = "cuda:0"
    name: str = "replay"
    unit: str = JOULES
    update_period_s: float = 0.1
    resolution_j: float = 1e-3
    wraps_at_j: float | None = None
    stalls_at_s: float = math.inf
    vanishes_at_s: float = math.inf
    absent: str | None = None
    _added: list[tuple[float, float]] = field(default_factory=list)
    _unwrapped: Unwrapped | None = None

    def available(self) -> str | None:
        found = self.read()
        return found.reason if isinstance(found, Absent) else None

    def add(self, joules: float) -> None:
        """Add energy to that of the steady watts."""
        self._added.append((self.clock(), joules))

    def read(self) -> Reading | Absent:
        now = self.clock()
        if self.absent is not None:
            return Absent(self.absent)
        if now >= self.vanishes_at_s:
            return Absent("the device has fallen off the bus")
        if self.unit != JOULES:
            return Reading(self._watts(now), now)
        raw = self._counted(now)
        if self.wraps_at_j is not None:
            self._unwrapped = self._unwrapped or Unwrapped(self.wraps_at_j)
            grown = self._unwrapped.grown(raw % self.wraps_at_j)
            return grown if isinstance(grown, Absent) else Reading(grown, now)
        return Reading(raw, now)

    def _watts(self, at_s: float) -> float:
        return self.watts(at_s) if callable(self.watts) else self.watts

    def _counted(self, now: float) -> float:
        """Energy until the last update: the mean of the watts at the ends of each period."""
        # A small part of a period more, since clocks add up with rounding.
        periods = math.floor(min(now, self.stalls_at_s) / self.update_period_s + 1e-6)
        until = periods * self.update_period_s
        added = sum(joules for at, joules in self._added if at <= until + 1e-9)
        if not callable(self.watts):
            return self.watts * until + added
        edges = [self._watts(number * self.update_period_s) for number in range(periods + 1)]
        steady = sum((a + b) / 2 for a, b in pairwise(edges)) * self.update_period_s
        return steady + added
