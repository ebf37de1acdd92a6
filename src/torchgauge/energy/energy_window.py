"""The energy of one run of a model: idle power first, then a warm-up to a steady state, then trials.

A counter that changes every 100 ms, read at any moment, is up to one update late. So a span begins and ends when the
counter changes; the model keeps running until then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import stdev
from time import perf_counter, sleep
from typing import TYPE_CHECKING

from torchgauge.energy.meter import Clock, Meter
from torchgauge.measure.absence import Absent

if TYPE_CHECKING:
    from torchgauge.facts.document_types import MeteredEnergy

# A counter that has not changed for this many update periods has stopped.
STALLED_PERIODS = 20
# A fast counter may pause while the device sleeps.
_MIN_STALL_S = 0.5


@dataclass(frozen=True, slots=True)
class EnergyWindow:
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
) -> EnergyWindow | Absent:
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
    return EnergyWindow(end.joules - begin.joules, end.at_s - begin.at_s, iterations + end.iterations)


def _next_tick(meter: Meter, run: Callable[[], object]) -> _Tick | Absent:
    before = meter.read()
    if isinstance(before, Absent):
        return before
    patience = max(STALLED_PERIODS * meter.update_period_s, _MIN_STALL_S)
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
                f"{meter.name} has stopped: no change in {waited:.1f} s, although it should be updated every "
                f"{meter.update_period_s:g} s"
            )


Thermometer = Callable[[], float | None]

# Two-sided 95 % points of Student's t, by degrees of freedom from 1 on.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_Z95 = 1.96
_STEADY_WITHIN = 0.02
_STEADY_WITHIN_C = 1.0
_MAX_TRIAL_S = 4.0


@dataclass(frozen=True, slots=True)
class Effort:
    """`budget_s` is for the trials, each of which spans at least `updates` of the meter. `warmup_s` limits the warm-up;
    after `settle_s` of rest, the idle power is measured over `idle_s`. `least_trial_s` is for meters that update every
    few milliseconds, because the power control of the device is slower."""

    budget_s: float = 15.0
    trials: int = 5
    least_trials: int = 3
    updates: int = 20
    settle_s: float = 1.0
    idle_s: float = 2.0
    warmup_s: float = 8.0
    least_trial_s: float = 1.0

    def shortest_s(self, meter: Meter) -> float:
        """The shortest trial that the meter resolves."""
        return max(self.updates * meter.update_period_s, self.least_trial_s)


@dataclass(frozen=True, slots=True)
class Trial:
    span: EnergyWindow
    temperature_c: float | None = None


@dataclass(slots=True)
class RunEnergy:
    """Trials of one model, in order; joules and seconds are those of one run."""

    idle_w: float | None
    trials: list[Trial] = field(default_factory=list)
    is_steady: bool = True

    @property
    def each(self) -> list[float]:
        return [trial.span.joules_each for trial in self.trials]

    @property
    def joules(self) -> float:
        """Over all trials: the mean power times the time of a run."""
        return sum(trial.span.joules for trial in self.trials) / self.iterations

    @property
    def seconds(self) -> float:
        return self.window_s / self.iterations

    @property
    def window_s(self) -> float:
        return sum(trial.span.seconds for trial in self.trials)

    @property
    def iterations(self) -> int:
        return sum(trial.span.iterations for trial in self.trials)

    @property
    def watts(self) -> float:
        return sum(trial.span.joules for trial in self.trials) / self.window_s

    @property
    def net_joules(self) -> float | None:
        """Without the idle power over the same time."""
        return None if self.idle_w is None else self.joules - self.idle_w * self.seconds

    def figures(self, *, flops: int, samples: int, tokens: int | None) -> MeteredEnergy:
        """Members of `energy` in the JSON; the peak is that of a whole trial unless a sensor saw a higher one."""
        return {
            "joules": self.joules,
            "ci95_j": mean_interval(self.each, self.joules),
            "net_joules": self.net_joules,
            "watts_mean": self.watts,
            "watts_peak": max(trial.span.watts for trial in self.trials),
            "idle_watts": self.idle_w,
            "flops_per_joule": flops / self.joules if self.joules and flops else None,
            "joules_per_sample": self.joules / samples,
            "joules_per_token": self.joules / tokens if tokens else None,
            "trials": len(self.trials),
            "iterations": self.iterations,
            "window_s": self.window_s,
        }


def mean_interval(values: Sequence[float], middle: float) -> list[float] | None:
    """95 % confidence interval around their mean, from Student's t; None of a single value."""
    freedom = len(values) - 1
    if freedom < 1:
        return None
    point = _T95[freedom - 1] if freedom <= len(_T95) else _Z95 + 2.5 / freedom
    half = point * stdev(values) / math.sqrt(len(values))
    return [middle - half, middle + half]


def measure_energy(
    meter: Meter,
    run: Callable[[], object],
    effort: Effort | None = None,
    *,
    thermometer: Thermometer = lambda: None,
    clock: Clock = perf_counter,
    rest: Callable[[float], object] = sleep,
) -> RunEnergy | Absent:
    """`run` returns when its work is done. Refused if the time is too short for the meter."""
    limits = effort or Effort()
    shortest = limits.shortest_s(meter)
    needed = limits.least_trials * shortest
    if limits.budget_s < needed:
        return Absent(
            f"{limits.budget_s:g} s are too short for {meter.name}, which is updated every {meter.update_period_s:g} s:"
            f" {limits.least_trials} trials of {shortest:g} s each need {needed:g} s"
        )
    # The power of the idle device, with this process's context on it.
    rest(limits.settle_s)
    pause = max(meter.update_period_s / 10, 1e-3)
    idle = measure_energy_window(meter, lambda: rest(pause), limits.idle_s, clock=clock)
    if isinstance(idle, Absent):
        return idle
    steady = _warm_up(meter, run, limits, thermometer, clock)
    if isinstance(steady, Absent):
        return steady
    found = RunEnergy(idle.watts, is_steady=steady)
    begin, seconds = clock(), max(shortest, min(limits.budget_s / limits.trials, _MAX_TRIAL_S))
    while len(found.trials) < limits.trials:
        # A run of minutes is not repeated for every trial.
        patience = 1 if len(found.trials) >= limits.least_trials else 3
        if found.trials and clock() - begin >= limits.budget_s * patience:
            break
        span = measure_energy_window(meter, run, seconds, clock=clock)
        if isinstance(span, Absent):
            return span
        found.trials.append(Trial(span, thermometer()))
    return found


def _warm_up(
    meter: Meter, run: Callable[[], object], effort: Effort, thermometer: Thermometer, clock: Clock
) -> bool | Absent:
    """Run until two consecutive spans agree in energy and temperature; False if the time was too short for that."""
    begin = clock()
    before: Trial | None = None
    while before is None or clock() - begin < effort.warmup_s:
        span = measure_energy_window(meter, run, effort.shortest_s(meter) / 2, clock=clock)
        if isinstance(span, Absent):
            return span
        now = Trial(span, thermometer())
        if before is not None:
            first, second, rise = before.span.joules_each, span.joules_each, 0.0
            if before.temperature_c is not None and now.temperature_c is not None:
                rise = abs(now.temperature_c - before.temperature_c)
            if abs(second - first) <= _STEADY_WITHIN * first and rise <= _STEADY_WITHIN_C:
                return True
        before = now
    return False
