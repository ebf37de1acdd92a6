"""Energy between two updates of a meter, while something runs all the time.

A counter that changes every 100 ms, read at any moment, is up to one update late. So a span begins and ends where the
counter was seen to change; what runs goes on until then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from torchgauge.energy.meter import Clock, Meter
from torchgauge.measure.absence import Absent

# A counter that has not changed for so many of its periods has stopped.
STALLED_PERIODS = 20
# A fast counter may pause while the device sleeps.
_LEAST_PATIENCE_S = 0.5


@dataclass(frozen=True, slots=True)
class Span:
    """`iterations` ran in `seconds` and took `joules`."""

    joules: float
    seconds: float
    iterations: int

    @property
    def watts(self) -> float:
        return self.joules / self.seconds

    @property
    def joules_each(self) -> float:
        return self.joules / self.iterations

    @property
    def seconds_each(self) -> float:
        return self.seconds / self.iterations


@dataclass(frozen=True, slots=True)
class _Tick:
    joules: float
    at_s: float
    iterations: int


def measure_energy_window(
    meter: Meter, run: Callable[[], object], seconds: float, *, clock: Clock = perf_counter
) -> Span | Absent:
    """Run for at least `seconds`. The meter is read only near the ends, so that the device need not wait for it."""
    begin = _next_tick(meter, run)
    if isinstance(begin, Absent):
        return begin
    iterations = 0
    while clock() - begin.at_s < seconds:
        run()
        iterations += 1
    end = _next_tick(meter, run)
    if isinstance(end, Absent):
        return end
    return Span(end.joules - begin.joules, end.at_s - begin.at_s, iterations + end.iterations)


def _next_tick(meter: Meter, run: Callable[[], object]) -> _Tick | Absent:
    before = meter.read()
    if isinstance(before, Absent):
        return before
    patience = max(STALLED_PERIODS * meter.update_period_s, _LEAST_PATIENCE_S)
    iterations = 0
    while True:
        run()
        iterations += 1
        now = meter.read()
        if isinstance(now, Absent):
            return now
        if now.value != before.value:
            return _Tick(now.value, now.at_s, iterations)
        waited = now.at_s - before.at_s
        if waited >= patience:
            return Absent(
                f"{meter.name} has stopped: no change in {waited:.1f} s, although it is said to be updated every "
                f"{meter.update_period_s:g} s"
            )
