"""Spans and trials against a replay meter: what the device takes is known to the joule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest

from torchgauge.energy import (
    WATTS,
    Effort,
    EnergyWindow,
    Integrated,
    ReplayClock,
    ReplayMeter,
    RunEnergy,
    Trial,
    mean_interval,
    measure_energy,
    measure_energy_window,
)
from torchgauge.measure import Absent

IDLE_W, RUN_J, RUN_S = 100.0, 6.0, 0.012
QUICK = Effort(budget_s=7.0, trials=3, idle_s=2.0, warmup_s=5.0)


def device(clock: ReplayClock, meter: ReplayMeter, joules: float = RUN_J, seconds: float = RUN_S) -> Callable[[], None]:
    """A run that takes so much above idle."""

    def run() -> None:
        clock.sleep(seconds)
        meter.add(joules)

    return run


def measured(meter: ReplayMeter, clock: ReplayClock, effort: Effort = QUICK, **run: float) -> RunEnergy | Absent:
    return measure_energy(meter, device(clock, meter, **run), effort, clock=clock, rest=clock.sleep)


def energy_of(meter: ReplayMeter, clock: ReplayClock, effort: Effort = QUICK, **run: float) -> RunEnergy:
    found = measured(meter, clock, effort, **run)
    assert isinstance(found, RunEnergy), found
    return found


def test_gross_net_and_idle_are_distinguished() -> None:
    clock = ReplayClock()
    found = energy_of(ReplayMeter(clock, IDLE_W), clock)
    gross = RUN_J + IDLE_W * RUN_S
    # A span ends within one run of the counter's change.
    assert found.joules == pytest.approx(gross, rel=RUN_S / 2)
    assert found.net_joules == pytest.approx(RUN_J, rel=RUN_S)
    assert found.idle_w == pytest.approx(IDLE_W, rel=0.02)
    assert found.watts == pytest.approx(gross / RUN_S, rel=RUN_S / 2)
    assert found.is_steady


def test_joules_watts_and_seconds_are_consistent() -> None:
    clock = ReplayClock()
    found = energy_of(ReplayMeter(clock, IDLE_W), clock)
    figures: Any = found.figures(flops=1200, samples=4, tokens=32)
    assert figures["watts_mean"] * figures["window_s"] == pytest.approx(figures["joules"] * figures["iterations"])
    assert figures["joules"] == pytest.approx(fmean(found.each), rel=0.01)
    assert figures["joules_per_sample"] * 4 == figures["joules_per_token"] * 32 == figures["joules"]
    assert figures["flops_per_joule"] == pytest.approx(1200 / figures["joules"])
    low, high = figures["ci95_j"]
    assert low <= figures["joules"] <= high
    assert figures["trials"] == 3


def test_every_trial_spans_the_updates_asked_for() -> None:
    clock = ReplayClock()
    found = energy_of(ReplayMeter(clock, IDLE_W), clock, replace(QUICK, budget_s=30.0))
    assert all(trial.span.seconds >= QUICK.updates * 0.1 - 1e-6 for trial in found.trials)


def test_a_counter_that_turns_counts_on() -> None:
    clock = ReplayClock()
    found = energy_of(ReplayMeter(clock, IDLE_W, wraps_at_j=2000.0), clock)
    assert clock() * IDLE_W + RUN_J * found.iterations > 2 * 2000.0  # it did turn
    assert found.joules == pytest.approx(RUN_J + IDLE_W * RUN_S, rel=RUN_S / 2)


def test_a_window_too_short_for_the_meter_is_refused_with_the_time_it_needs() -> None:
    clock = ReplayClock()
    found = measured(ReplayMeter(clock, IDLE_W, name="slow", update_period_s=2.0), clock)
    assert isinstance(found, Absent)
    assert "7 s are too short for slow, which is updated every 2 s" in found.reason
    assert "3 trials of 40 s each need 120 s" in found.reason
    assert clock() == 0.0  # nothing was run


@pytest.mark.parametrize("at_s", [0.0, 2.0, 4.0, 7.0])
def test_a_counter_that_stops_is_found_out(at_s: float) -> None:
    clock = ReplayClock()
    found = measured(ReplayMeter(clock, IDLE_W, stalls_at_s=at_s), clock)
    assert isinstance(found, Absent)
    assert "has stopped: no change in 2.0 s" in found.reason


@pytest.mark.parametrize("at_s", [0.5, 2.0, 4.0, 7.0])
def test_a_meter_that_vanishes_leaves_its_reason(at_s: float) -> None:
    clock = ReplayClock()
    found = measured(ReplayMeter(clock, IDLE_W, vanishes_at_s=at_s), clock)
    assert found == Absent("the device has fallen off the bus")


def test_of_two_devices_the_busy_neighbour_does_not_count() -> None:
    clock = ReplayClock()
    used, neighbour = ReplayMeter(clock, IDLE_W), ReplayMeter(clock, 700.0, covers="cuda:1")
    assert energy_of(used, clock).joules == pytest.approx(RUN_J + IDLE_W * RUN_S, rel=RUN_S / 2)
    reading = neighbour.read()
    assert not isinstance(reading, Absent)
    assert reading.value == pytest.approx(700.0 * clock(), rel=0.05)


def test_runs_longer_than_an_update_are_counted_whole() -> None:
    clock = ReplayClock()
    found = energy_of(ReplayMeter(clock, IDLE_W), clock, joules=900.0, seconds=1.5)
    assert found.joules == pytest.approx(900.0 + 150.0, rel=0.02)
    assert all(trial.span.iterations >= 2 for trial in found.trials)


def test_a_run_of_minutes_is_not_repeated_for_every_trial() -> None:
    clock = ReplayClock()
    found = energy_of(ReplayMeter(clock, IDLE_W), clock, joules=9000.0, seconds=100.0)
    assert len(found.trials) == 1
    assert found.figures(flops=0, samples=1, tokens=None)["ci95_j"] is None


def test_a_device_that_heats_up_is_waited_for() -> None:
    clock = ReplayClock()
    meter = ReplayMeter(clock, IDLE_W)
    run = device(clock, meter)
    degrees = iter([40.0, 45.0, 48.0, 48.5, *[48.5] * 10])
    found = measure_energy(meter, run, QUICK, thermometer=lambda: next(degrees), clock=clock, rest=clock.sleep)
    assert isinstance(found, RunEnergy)
    assert found.is_steady
    assert [trial.temperature_c for trial in found.trials] == [48.5] * 3


def test_a_warm_up_that_is_too_short_is_reported() -> None:
    clock = ReplayClock()
    meter = ReplayMeter(clock, IDLE_W)

    def run() -> None:
        clock.sleep(RUN_S)
        meter.add(RUN_J * (1 + clock()))

    found = measure_energy(meter, run, QUICK, clock=clock, rest=clock.sleep)
    assert isinstance(found, RunEnergy)
    assert not found.is_steady


def test_a_power_meter_serves_as_a_counter() -> None:
    clock = ReplayClock()
    power = Integrated(ReplayMeter(clock, watts=lambda at: 250.0, unit=WATTS))
    span = measure_energy_window(power, lambda: clock.sleep(0.05), 2.0, clock=clock)
    assert isinstance(span, EnergyWindow)
    assert span.joules_each == pytest.approx(12.5)


def test_the_interval_is_that_of_student() -> None:
    # Mean 2, standard deviation 1, n 3: t = 4.303 with two degrees of freedom.
    assert mean_interval([1.0, 2.0, 3.0], 2.0) == pytest.approx([2 - 4.303 / 3**0.5, 2 + 4.303 / 3**0.5])
    assert mean_interval([5.0], 5.0) is None


def test_a_trial_of_nothing_but_idle_has_no_net_energy() -> None:
    found = RunEnergy(50.0, [Trial(EnergyWindow(100.0, 2.0, 10)), Trial(EnergyWindow(100.0, 2.0, 10))])
    assert (found.joules, found.net_joules) == (10.0, 0.0)
