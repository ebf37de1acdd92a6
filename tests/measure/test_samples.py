from __future__ import annotations

import random

import pytest

from torchgauge.measure import Timed, median_interval, middle_half, nearest, percentile, relative_half_width


def test_the_interval_holds_the_true_median_in_about_95_of_100_series() -> None:
    generator = random.Random(0)
    series = [[generator.lognormvariate(0, 1) for _ in range(25)] for _ in range(2000)]
    held = sum(low <= 1.0 <= high for low, high in map(median_interval, series))
    assert 0.94 <= held / len(series) <= 0.99


def test_few_runs_give_the_whole_range() -> None:
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert median_interval([5.0]) == (5.0, 5.0)


def test_more_runs_give_a_narrower_interval() -> None:
    generator = random.Random(1)
    values = [generator.gauss(10, 1) for _ in range(1000)]
    assert relative_half_width(values) < relative_half_width(values[:20])


def test_percentiles_lie_between_the_closest_ranks() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0, 5.0], 0.9) == pytest.approx(4.6)
    assert percentile([7.0], 0.99) == 7.0


def test_the_figures_of_a_known_series() -> None:
    found = Timed(seconds=[1.0, 2.0, 3.0, 4.0]).figures()
    assert found is not None
    assert found["median_s"] == 2.5
    assert found["mean_s"] == 2.5
    assert (found["min_s"], found["max_s"], found["runs"]) == (1.0, 4.0, 4)
    assert found["std_s"] == pytest.approx(1.25**0.5)


def test_the_middle_half_leaves_out_the_fastest_and_the_slowest_quarter() -> None:
    assert middle_half([9, 1, 5, 4, 6, 100, 3, 7], float) == [4, 5, 6, 7]
    assert middle_half([2, 1], float) == [1, 2]


def test_the_nearest_is_around_the_target() -> None:
    assert sorted(nearest([1, 2, 10, 11, 12, 30], float, 11.0)) == [10, 11, 12]
    assert nearest([1, 2, 10, 11, 12, 30], float, 11.0, 0.2) == [11, 10]
    assert nearest([4], float, 100.0) == [4]
