from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator

import pytest

from torchgauge.measure import Budget, time_runs


class Stage:
    """A clock that only moves when a run takes its time."""

    def __init__(self, durations: Iterator[float]) -> None:
        self.now = 0.0
        self.durations = durations
        self.runs = 0

    def clock(self) -> float:
        return self.now

    def run(self) -> None:
        self.runs += 1
        self.now += next(self.durations)


def steady(value: float, first: float | None = None) -> Iterator[float]:
    yield value if first is None else first
    while True:
        yield value


def test_the_cold_run_is_kept_apart() -> None:
    stage = Stage(steady(0.01, first=5.0))
    timed = time_runs(stage.run, Budget(seconds=60), clock=stage.clock)
    assert timed.cold_s == 5.0
    assert max(timed.seconds) == pytest.approx(0.01)


def test_a_steady_run_stops_at_the_least_number_of_runs_and_seconds() -> None:
    stage = Stage(steady(0.5))
    timed = time_runs(stage.run, Budget(seconds=60, least=10, settle_s=2), clock=stage.clock)
    assert len(timed.seconds) == 10
    stage = Stage(steady(0.01))
    timed = time_runs(stage.run, Budget(seconds=60, least=10, settle_s=2), clock=stage.clock)
    assert 2.0 <= sum(timed.seconds) <= 2.3
    assert timed.precision == pytest.approx(0.0, abs=1e-9)


def test_warm_up_goes_on_until_the_times_settle() -> None:
    def settling() -> Iterator[float]:
        for i in range(30):
            yield 0.1 - 0.003 * i
        yield from steady(0.01)

    stage = Stage(settling())
    timed = time_runs(stage.run, Budget(seconds=600), clock=stage.clock)
    assert timed.warmup >= 30
    assert max(timed.seconds) == pytest.approx(0.01)


def test_a_noisy_run_goes_on_until_the_budget_ends() -> None:
    def noisy() -> Iterator[float]:
        generator = random.Random(0)
        while True:
            yield generator.lognormvariate(-4, 1)

    stage = Stage(noisy())
    timed = time_runs(stage.run, Budget(seconds=5), clock=stage.clock)
    assert 4.9 <= stage.now <= 5.2
    assert timed.precision is not None
    assert timed.precision > 0.02


def test_a_machine_that_changes_its_speed_is_watched_until_the_budget_ends() -> None:
    def slowing() -> Iterator[float]:
        for number in range(10_000):
            yield 0.01 * (1 + number / 400)

    stage = Stage(slowing())
    timed = time_runs(stage.run, Budget(seconds=5), clock=stage.clock)
    assert 4.9 <= stage.now <= 5.2
    assert timed.drift is not None
    assert timed.drift > 0.2


def test_work_between_the_runs_is_not_timed() -> None:
    stage = Stage(steady(0.1))
    done: list[int] = []

    def between_runs() -> None:
        done.append(len(done))
        stage.now += 7.0

    timed = time_runs(stage.run, Budget(seconds=100, settle_s=0), between=between_runs, clock=stage.clock)
    assert max(timed.seconds) == pytest.approx(0.1)
    assert len(done) == len(timed.seconds) // 3


def test_a_run_longer_than_the_budget_is_timed_once() -> None:
    stage = Stage(steady(100.0))
    timed = time_runs(stage.run, Budget(seconds=10), clock=stage.clock)
    assert timed.seconds == [100.0]


@pytest.mark.parametrize("error", [ValueError("fifth"), SystemExit(7), KeyboardInterrupt()])
def test_measurements_before_a_failure_are_kept(error: BaseException) -> None:
    stage = Stage(steady(0.01))

    def failing() -> None:
        stage.run()
        if stage.runs == 20:
            raise error

    timed = time_runs(failing, Budget(seconds=60, least=100), clock=stage.clock)
    assert timed.failure is error
    assert 5 <= len(timed.seconds) < 20


def test_a_failure_in_the_first_run_leaves_no_figures() -> None:
    def failing() -> None:
        raise RuntimeError("no")

    timed = time_runs(failing)
    assert timed.figures() is None
    assert timed.cold_s is None


def test_throughput_counts_the_items_of_a_run() -> None:
    stage = Stage(steady(0.5))
    found = time_runs(stage.run, Budget(seconds=60), clock=stage.clock).figures(items=8)
    assert found is not None
    assert found["throughput_per_s"] == 16.0


def collecting(enabled: bool) -> Callable[[], None]:
    def run() -> None:
        assert not gc.isenabled()

    return run


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_quiet_while_runs_are_timed_and_as_before_afterwards(enabled: bool) -> None:
    before = gc.isenabled()
    try:
        gc.enable() if enabled else gc.disable()
        assert time_runs(collecting(enabled), Budget(seconds=0.01)).failure is None
        assert gc.isenabled() == enabled
    finally:
        gc.enable() if before else gc.disable()
