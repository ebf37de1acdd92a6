from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import cycle

import pytest

from torchgauge.verify import LEAST_PAIRS, Paired, Switches, time_pairs


@dataclass
class Clock:
    now: float = 0.0
    slowness: float = 1.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Runs:
    """Takes the seconds it is given, in turn; all of them longer on a slower machine."""

    clock: Clock
    seconds: list[float]
    samples: int = 1
    after: Callable[[Clock], None] = lambda clock: None
    switches: Switches = field(default_factory=Switches.now)
    calls: int = 0

    def __post_init__(self) -> None:
        self.left: Iterator[float] = cycle(self.seconds)

    def run(self) -> None:
        self.calls += 1
        self.clock.now += next(self.left) * self.clock.slowness
        self.after(self.clock)


def test_the_gain_is_the_share_of_the_time_that_is_saved() -> None:
    clock = Clock()
    paired = time_pairs(Runs(clock, [2.0]), Runs(clock, [1.5]), 100.0, clock)

    assert paired.gain == pytest.approx(0.25)
    assert paired.interval == pytest.approx((0.25, 0.25))
    assert len(paired.logs) >= LEAST_PAIRS


def test_a_machine_that_slows_down_does_so_for_both() -> None:
    clock = Clock()

    def tire(clock: Clock) -> None:
        clock.slowness *= 1.01

    paired = time_pairs(Runs(clock, [2.0], after=tire), Runs(clock, [1.5], after=tire), 300.0, clock)

    # The pairs are off by 1 % to one side and to the other.
    assert paired.gain == pytest.approx(0.25, abs=0.008)
    assert paired.interval is not None
    assert paired.interval[0] <= 0.25 <= paired.interval[1]


def test_a_spike_here_and_there_does_not_count() -> None:
    clock = Clock()
    spiky = [1.0, 1.0, 1.0, 1.0, 50.0]
    paired = time_pairs(Runs(clock, [1.0]), Runs(clock, spiky), 1000.0, clock)

    assert paired.gain == pytest.approx(0.0)


def test_samples_make_it_a_gain_per_sample() -> None:
    clock = Clock()
    paired = time_pairs(Runs(clock, [1.0]), Runs(clock, [2.0], samples=4), 100.0, clock)

    assert paired.gain == pytest.approx(0.5)


def test_runs_that_take_too_long_have_no_interval() -> None:
    clock = Clock()
    paired = time_pairs(Runs(clock, [100.0]), Runs(clock, [50.0]), 10.0, clock)

    assert 0 < len(paired.logs) < LEAST_PAIRS
    assert paired.interval is None
    assert paired.figures()["ci95"] is None


def test_a_noisy_ratio_is_measured_longer_but_not_for_ever() -> None:
    clock = Clock()
    noisy = [0.5, 1.0, 1.5, 0.7, 1.3, 0.9]
    time_pairs(Runs(clock, [1.0]), Runs(clock, noisy), 40.0, clock)
    noisy_s, clock.now = clock.now, 0.0
    time_pairs(Runs(clock, [1.0]), Runs(clock, [0.9]), 40.0, clock)

    assert noisy_s > 2 * clock.now
    assert noisy_s < 4 * 40


def test_short_runs_are_repeated_for_one_sample() -> None:
    clock = Clock()
    quick = Runs(clock, [1e-4])
    paired = time_pairs(quick, Runs(clock, [1e-4]), 0.1, clock)

    assert quick.calls > 20 * len(paired.logs)


def test_without_a_pair_nothing_is_known() -> None:
    counted = {"pairs": 0, "rounds": 1, "floor": 0.0, "other_processes_share": 0.0, "second_process_gain": None}
    assert Paired().figures() == {"gain": None, "ci95": None, **counted}


def test_what_equal_models_differ_by_is_part_of_the_interval() -> None:
    known = Paired([math.log(0.75)] * LEAST_PAIRS, floor=math.log(1.01))

    assert known.gain == pytest.approx(0.25)
    assert known.interval == pytest.approx((1 - 0.75 * 1.01, 1 - 0.75 / 1.01))


def test_two_rounds_span_what_both_found() -> None:
    first, second = Paired([math.log(0.5)] * LEAST_PAIRS), Paired([math.log(0.8)] * (LEAST_PAIRS + 2))
    both = replace(second, earlier=first)

    assert both.interval == pytest.approx((0.2, 0.5))
    assert both.gain == pytest.approx(1 - math.sqrt(0.5 * 0.8))  # each counts the same
    assert both.figures()["pairs"] == 2 * LEAST_PAIRS + 2
    assert both.figures()["rounds"] == 2


def test_four_rounds_settle_it_and_one_with_too_few_pairs_does_too() -> None:
    known: Paired | None = None
    for ratio in (0.5, 0.501, 0.5, 0.502):
        assert known is None or not known.is_settled
        known = Paired([math.log(ratio)] * LEAST_PAIRS, earlier=known)
    assert known is not None
    assert known.is_settled
    assert Paired([math.log(0.5)] * (LEAST_PAIRS - 1)).is_settled


def test_a_round_with_too_few_pairs_leaves_no_interval() -> None:
    few = Paired([math.log(0.5)] * (LEAST_PAIRS - 1))

    assert replace(Paired([math.log(0.5)] * LEAST_PAIRS), earlier=few).interval is None


def test_a_round_that_is_known_to_no_more_than_a_tenth_is_noisy() -> None:
    quiet = Paired([math.log(0.9 * (1 + 0.01 * at)) for at in range(LEAST_PAIRS)])
    noisy = Paired([math.log(0.9 * (1 + 0.1 * at)) for at in range(LEAST_PAIRS)])

    assert not quiet.is_noisy
    assert noisy.is_noisy
    assert replace(quiet, earlier=noisy).is_noisy
    # Rounds that are apart are not noise within any of them.
    assert not replace(quiet, earlier=Paired([math.log(0.5)] * LEAST_PAIRS)).is_noisy


def test_at_least_one_pair_is_made_however_short_the_time() -> None:
    clock = Clock()

    assert len(time_pairs(Runs(clock, [1.0]), Runs(clock, [1.0]), 1e-12, clock).logs) >= 1
