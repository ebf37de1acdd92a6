from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from torchgauge.measure import (
    MAX_NUMBERS,
    MAX_POINTS,
    Absent,
    Quantity,
    Sampler,
    Samples,
    Series,
    Value,
    list_quantities,
    process_quantities,
    processor_quantities,
    sampling,
)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def replay(values: list[Value | Absent]) -> Callable[[], Value | Absent]:
    stream = iter(values)
    return lambda: next(stream)


def sampled(quantity: Quantity, steps: int, *, period_s: float = 1.0) -> Samples:
    """One reading to begin with, one at every period, the last at the end."""
    samples, clock = Samples(period_s), Clock()
    sampler = Sampler([quantity], samples, clock, spent=lambda: 0.0)
    sampler.begin()
    for period in range(1, steps + 1):
        clock.now = period * period_s
        sampler.step(period) if period < steps else sampler.end()
    return samples


def test_a_gauge_is_shown_without_changes() -> None:
    found = sampled(Quantity("rss_bytes", "B", replay([9.0, 1.0, 4.0, 7.0]), "a replay"), 3).figures()
    row = found["quantities"]["rss_bytes"]
    assert (row["t_s"], row["values"]) == ([1.0, 2.0, 3.0], [1.0, 4.0, 7.0])
    assert (row["min"], row["mean"], row["max"], row["total"]) == (1.0, 4.0, 7.0, None)


def test_a_counter_is_shown_as_its_rate_with_the_total_of_the_run() -> None:
    counter = Quantity("faults_per_s", "1/s", replay([100.0, 110.0, 110.0, 140.0]), "a replay", is_counter=True)
    row: Any = sampled(counter, 3, period_s=0.5).figures()["quantities"]["faults_per_s"]
    assert row["values"] == [20.0, 0.0, 60.0]
    assert row["mean"] * 1.5 == pytest.approx(row["total"])
    assert row["total"] == 40.0


def test_every_label_has_its_own_figures_and_cores_a_mean() -> None:
    busy: list[Value | Absent] = [(0.0, 0.0), (1.0, 0.5), (1.5, 1.5)]
    cores = Quantity(
        "cpu_share", "share", replay(busy), "a replay", is_counter=True, labels=("cpu0", "cpu1"), is_averaged=True
    )
    row: Any = sampled(cores, 2).figures()["quantities"]["cpu_share"]
    assert row["values"] == [[1.0, 0.5], [0.5, 1.0]]
    assert row["by_label"]["cpu0"] == {"min": 0.5, "mean": 0.75, "max": 1.0}
    assert (row["mean"], row["total"]) == (0.75, [1.5, 1.5])


def test_ticks_charged_late_do_not_make_a_core_busier_than_it_can_be() -> None:
    core = Quantity("cpu_share", "share", replay([0.0, 0.5, 1.8]), "a replay", is_counter=True)
    row = sampled(core, 2).figures()["quantities"]["cpu_share"]
    assert (row["values"], row["max"], row["total"]) == ([0.5, 1.0], 1.0, 1.8)


def test_labels_that_do_not_mix_have_no_common_mean() -> None:
    disk = Quantity("disk_bytes_per_s", "B/s", lambda: (1.0, 2.0), "a replay", labels=("read", "written"))
    assert "mean" not in sampled(disk, 2).figures()["quantities"]["disk_bytes_per_s"]


def test_unreadable_quantities_give_the_reason() -> None:
    def refuse() -> Value:
        raise PermissionError("no access")

    found = sampled(Quantity("disk", "B/s", refuse, "the disks"), 2).figures()
    assert found["quantities"] == {}
    assert found["absent"] == {"disk": "the disks: no access"}


def test_a_sensor_that_fails_midway_is_absent() -> None:
    values: list[Value | Absent] = [1.0, 2.0, Absent("GPU is lost")]
    found = sampled(Quantity("cuda_power_w", "W", replay(values), "NVML"), 3).figures()
    assert found["quantities"] == {}
    assert found["absent"] == {"cuda_power_w": "until 2.0 s, then: GPU is lost"}


@pytest.mark.parametrize(("cost", "interval"), [(0.0002, 1), (0.0003, 2), (0.0025, 10)])
def test_a_dear_reading_is_made_more_rarely(cost: float, interval: int) -> None:
    """A quarter of a percent of 0.1 s is 0.25 ms per period."""
    spent = iter(cost * half for half in range(100))
    samples, clock = Samples(0.1), Clock()
    sampler = Sampler([Quantity("q", "", lambda: 1.0, "a replay")], samples, clock, lambda: next(spent))
    sampler.begin()
    assert sampler.step(1) == 1 + interval


def test_a_source_that_changes_rarely_is_not_asked_more_often() -> None:
    samples = Samples(0.1)
    sampler = Sampler([Quantity("q", "", lambda: 1.0, "a replay", update_s=1.0)], samples, Clock(), lambda: 0.0)
    sampler.begin()
    assert sampler.step(1) == 10
    assert samples.tracks["q"].series.samples == 0


def test_a_series_stays_short_and_its_figures_see_every_value() -> None:
    series = Series()
    count = 5 * MAX_POINTS + 3
    for index in range(count):
        series.add(float(index), (float(index),))
    points: Any = series.points()
    assert MAX_POINTS / 2 <= len(points["values"]) <= MAX_POINTS + 1
    assert points["t_s"] == sorted(points["t_s"])
    assert points["t_s"][-1] == count - 1
    assert series.overall.figures() == {"min": 0.0, "mean": (count - 1) / 2, "max": count - 1}
    # Every point is the mean of `grain` neighbours, so the steps between whole points are even.
    steps = {after - before for before, after in zip(points["values"][:-2], points["values"][1:-1], strict=True)}
    assert steps == {series.grain}


def test_many_labels_mean_fewer_points() -> None:
    width = 64
    series = Series(width)
    for index in range(1000):
        series.add(float(index), (1.0,) * width)
    assert len(series.points()["values"]) * width <= MAX_NUMBERS + width


@pytest.fixture
def no_thread_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() == before


@pytest.mark.usefixtures("no_thread_left")
def test_the_machine_is_sampled_while_the_block_runs() -> None:
    with sampling("cpu", period_s=0.01) as samples:
        began = time.process_time()
        while time.process_time() - began < 0.05:  # the system counts in steps of 10 ms
            pass
    found = json.loads(json.dumps(samples.figures()))
    rows = found["quantities"]
    assert len(rows["cpu_share"]["by_label"]) == psutil.cpu_count()
    assert 0 < rows["process_cores"]["total"] <= found["duration_s"] * (psutil.cpu_count() or 1) + 0.1
    assert rows["rss_bytes"]["max"] > 2**20
    assert found["cost"]["cpu_s"] >= 0
    assert found["absent"]["cuda"] == "the run is on the cpu"
    assert {"page_faults_per_s", "context_switches_per_s"} <= set(rows)


@pytest.mark.usefixtures("no_thread_left")
def test_a_block_that_raises_leaves_no_thread_and_keeps_its_readings() -> None:
    with pytest.raises(KeyboardInterrupt), sampling("cpu") as samples:
        raise KeyboardInterrupt
    assert samples.figures()["quantities"]["rss_bytes"]["samples"] == 1


def test_without_a_cuda_device_its_quantities_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with sampling("cuda:0") as samples:
        pass
    assert samples.absent["cuda_power_w"] == "torch sees no CUDA device here"
    rows = {row["name"]: row for row in list_quantities(0)}
    assert rows["cuda_power_w"]["available"] is False
    assert rows["rss_bytes"]["available"] is True


def test_a_reading_has_as_many_values_as_labels() -> None:
    for quantity in (*processor_quantities(), *process_quantities()):
        value = quantity.now()
        if not isinstance(value, Absent):
            assert len(value if isinstance(value, tuple) else (value,)) == max(1, len(quantity.labels)), quantity.name
