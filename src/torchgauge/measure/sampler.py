"""Samples the state of the machine during a run, by a thread whose cost is limited and reported.

with sampling(device) as samples:
    run()
samples.figures()
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from time import perf_counter, thread_time
from typing import TYPE_CHECKING

from torchgauge.measure.absence import Absent, Instrument
from torchgauge.measure.readings import (
    Quantity,
    Value,
    cuda_quantities,
    nvml_device,
    process_quantities,
    processor_quantities,
)

if TYPE_CHECKING:
    import torch

    from torchgauge.facts.document_types import Extent as ExtentFigures
    from torchgauge.facts.document_types import Sampled, System


# One for every label; of a quantity without labels just one.
Numbers = tuple[float, ...]

MAX_POINTS = 2_000
# Numbers kept of a quantity with many labels (cores): fewer points, so that a report stays small on a large machine.
MAX_NUMBERS = 16_000


@dataclass(slots=True)
class Extent:
    """Smallest, largest, and the mean weighted by how long each value stood."""

    low: float = float("inf")
    high: float = float("-inf")
    weighted: float = 0.0
    weight: float = 0.0

    def add(self, value: float, weight: float) -> None:
        self.low, self.high = min(self.low, value), max(self.high, value)
        self.weighted += value * weight
        self.weight += weight

    def figures(self) -> ExtentFigures:
        if not self.weight:
            return {"min": None, "mean": None, "max": None}
        return {"min": self.low, "mean": self.weighted / self.weight, "max": self.high}


@dataclass(slots=True)
class Series:
    """Points in order. When there are too many, neighbours are merged in pairs, and what comes later at the same grain;
    the extents still see every value."""

    width: int = 1
    times: list[float] = field(default_factory=list)
    values: list[Numbers] = field(default_factory=list)
    grain: int = 1
    extents: list[Extent] = field(default_factory=list)
    overall: Extent = field(default_factory=Extent)
    samples: int = 0
    _pending: list[tuple[float, Numbers]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.extents = [Extent() for _ in range(self.width)]

    @property
    def limit(self) -> int:
        return max(2, min(MAX_POINTS, MAX_NUMBERS // self.width))

    def add(self, at: float, numbers: Numbers, weight: float = 1.0) -> None:
        for extent, number in zip(self.extents, numbers, strict=True):
            extent.add(number, weight)
        self.overall.add(sum(numbers) / len(numbers), weight)
        self.samples += 1
        self._pending.append((at, numbers))
        if len(self._pending) == self.grain:
            merged_at, merged = _merged(self._pending)
            self.times.append(merged_at)
            self.values.append(merged)
            self._pending.clear()
            if len(self.times) > self.limit:
                self._halve()

    def _halve(self) -> None:
        points = list(zip(self.times, self.values, strict=True))
        pairs = [_merged(points[place : place + 2]) for place in range(0, len(points) - 1, 2)]
        if len(points) % 2:
            # The one left over becomes the first half of the next pair, as often as it counts.
            self._pending = [points[-1]] * self.grain
        self.times, self.values = [at for at, _ in pairs], [numbers for _, numbers in pairs]
        self.grain *= 2

    def points(self) -> Sampled:
        """`t_s` is the time of the last reading of each point; with labels, a point is a list."""
        rest = [_merged(self._pending)] if self._pending else []
        times = self.times + [at for at, _ in rest]
        values = self.values + [numbers for _, numbers in rest]
        return {"t_s": times, "values": [list(v) for v in values] if self.width > 1 else [v[0] for v in values]}


def _merged(points: list[tuple[float, Numbers]]) -> tuple[float, Numbers]:
    columns = zip(*(numbers for _, numbers in points), strict=True)
    return points[-1][0], tuple(sum(column) / len(points) for column in columns)


PERIOD_S = 0.2
_SHARE = "share"
# Shares of one core's time: the planned cost of the readings, and their limit, including wake-ups. If Python keeps a
# device busy, the model also waits for the interpreter, about as long again.
_PLANNED_SHARE = 0.0025
_MAX_CORE_SHARE = 0.004

Clock = Callable[[], float]


@dataclass(slots=True)
class Track:
    """One quantity over the run. `interval` is in periods: several if a reading is expensive or the source is slow."""

    quantity: Quantity
    series: Series
    first: Numbers
    last: Numbers
    last_at: float = 0.0
    least_interval: int = 1
    interval: int = 1
    due: int = 1
    cost_s: float = 0.0
    readings: int = 0

    @property
    def mean_cost_s(self) -> float:
        return self.cost_s / self.readings if self.readings else 0.0

    def take(self, at: float, numbers: Numbers) -> None:
        """The value of a gauge counts once; the rate of a counter is weighted by its time span."""
        if not self.quantity.is_counter:
            self.series.add(at, numbers)
        elif at > self.last_at:
            elapsed = at - self.last_at
            rates = tuple(grown / elapsed for grown in _growth(self.last, numbers))
            # Ticks that are charged late would make it busier than it can be.
            shown = tuple(min(rate, 1.0) for rate in rates) if self.quantity.unit == _SHARE else rates
            self.series.add(at, shown, elapsed)
        self.last, self.last_at = numbers, at

    def figures(self, period_s: float) -> Sampled:
        """`total` is the growth of a counter over the whole run."""
        labels = self.quantity.labels
        extents = [extent.figures() for extent in self.series.extents]
        total: float | list[float | None] | None = None
        if self.quantity.is_counter:
            grown = _growth(self.first, self.last)
            total = [*grown] if labels else grown[0]
        figures: Sampled = {"unit": self.quantity.unit}
        if not labels or self.quantity.is_averaged:
            whole = self.series.overall.figures()
            figures |= {"min": whole["min"], "mean": whole["mean"], "max": whole["max"]}
        return {
            **figures,
            "total": total,
            "by_label": dict(zip(labels, extents, strict=True)) if labels else None,
            "samples": self.series.samples,
            "period_s": self.interval * period_s,
            "update_period_s": self.quantity.update_s,
            **self.series.points(),
        }


def _growth(before: Numbers, after: Numbers) -> list[float]:
    return [new - old for old, new in zip(before, after, strict=True)]


def _numbers(value: Value) -> Numbers:
    return value if isinstance(value, tuple) else (value,)


@dataclass(slots=True)
class Samples:
    """The samples; complete when the block has ended."""

    period_s: float
    tracks: dict[str, Track] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    duration_s: float = 0.0
    cpu_s: float = 0.0

    def figures(self) -> System:
        """Plain JSON: the contract's `measurements.system`."""
        return {
            "duration_s": self.duration_s,
            "period_s": self.period_s,
            "cost": {"cpu_s": self.cpu_s, "share": self.cpu_s / self.duration_s if self.duration_s else None},
            "quantities": {name: track.figures(self.period_s) for name, track in self.tracks.items()},
            "absent": dict(self.absent),
        }


class Sampler:
    """The readings themselves, without a thread: `begin`, then `step` at every period, then `end`."""

    def __init__(
        self, quantities: Iterable[Quantity], samples: Samples, clock: Clock = perf_counter, spent: Clock = thread_time
    ) -> None:
        self.samples, self._clock, self._spent = samples, clock, spent
        self._quantities = list(quantities)
        self._began = 0.0

    def begin(self) -> None:
        """The first readings: the start values of counters, and which quantities cannot be read."""
        self._began = self._clock()
        for quantity in self._quantities:
            value = quantity.now()
            if isinstance(value, Absent):
                self.samples.absent[quantity.name] = value.reason
                continue
            numbers = _numbers(value)
            every = max(1, round((quantity.update_s or 0.0) / self.samples.period_s))
            track = Track(quantity, Series(len(numbers)), numbers, numbers, 0.0, every, every, every)
            self.samples.tracks[quantity.name] = track

    def step(self, period: int) -> int:
        """Make the readings that are due in this period; the period in which the next ones are."""
        for track in list(self.samples.tracks.values()):
            if track.due <= period:
                self._read(track)
                track.due = period + track.interval
        return min((track.due for track in self.samples.tracks.values()), default=period + 1)

    def _read(self, track: Track) -> None:
        before = self._spent()
        value = track.quantity.now()
        at = self._clock() - self._began
        if isinstance(value, Absent):
            # It can no longer be read: the readings so far must not be taken for the whole run.
            del self.samples.tracks[track.quantity.name]
            self.samples.absent[track.quantity.name] = f"until {at:.1f} s, then: {value.reason}"
            return
        track.take(at, _numbers(value))
        track.cost_s += self._spent() - before
        track.readings += 1
        # One period if the reading is cheap; expensive readings are made less often, so that all together stay within
        # the plan.
        tracks, plan = self.samples.tracks.values(), _PLANNED_SHARE * self.samples.period_s
        track.interval = track.least_interval
        if track.mean_cost_s > plan / len(tracks):
            affordable = math.ceil(sum(other.mean_cost_s for other in tracks) / plan)
            track.interval = max(track.least_interval, affordable)

    def current_period(self) -> float:
        return (self._clock() - self._began) / self.samples.period_s

    def end(self) -> None:
        """The last readings: the counters' totals are over the whole run, however short it was."""
        self.samples.duration_s = self._clock() - self._began
        for track in list(self.samples.tracks.values()):
            self._read(track)


@contextmanager
def sampling(
    device: torch.device | str | None = None,
    *,
    period_s: float = PERIOD_S,
    quantities: Iterable[Quantity] | None = None,
) -> Iterator[Samples]:
    """Sample while the block runs; `device` is the one the run uses. The samples are complete after the block."""
    samples = Samples(period_s)
    with ExitStack() as stack:
        if quantities is None:
            quantities = [*processor_quantities(), *process_quantities()]
            kind, _, index = str(device or "cpu").partition(":")
            if kind == "cuda":
                import torch

                number = int(index) if index else torch.cuda.current_device()
                quantities += cuda_quantities(stack.enter_context(nvml_device(number)))
            else:
                samples.absent["cuda"] = f"the run is on the {kind}"
        sampler = Sampler(quantities, samples)
        sampler.begin()
        stop = threading.Event()

        def loop() -> None:
            due = 1
            while not stop.wait(max(0.0, due - sampler.current_period()) * period_s):
                due = sampler.step(due)
                samples.cpu_s = thread_time()
                # Before this period nothing more may be spent.
                affordable = samples.cpu_s / _MAX_CORE_SHARE / period_s
                due = max(due, math.ceil(sampler.current_period()), math.ceil(affordable))

        thread = threading.Thread(target=loop, name="torchgauge sampler", daemon=True)
        thread.start()
        try:
            yield samples
        finally:
            stop.set()
            thread.join()
            sampler.end()


def list_quantities(cuda_devices: int) -> list[Instrument]:
    """All quantities with their resolution, or why they are missing."""
    rows = [quantity.describe() for quantity in (*processor_quantities(), *process_quantities())]
    for index in range(max(1, cuda_devices)):
        with nvml_device(index) as device:
            found = [quantity.describe() for quantity in cuda_quantities(device)]
        rows += [{**row, "device": f"cuda:{index}"} for row in found] if cuda_devices else found
    return rows
