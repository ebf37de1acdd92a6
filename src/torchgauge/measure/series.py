"""What was read over time: bounded in length, with figures over everything that was read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Extent as ExtentFigures
    from torchgauge.facts.document_types import Sampled

# One for every label; of a quantity without labels just one.
Numbers = tuple[float, ...]

MOST_POINTS = 2_000
# Of a quantity with many labels (cores) fewer points are kept, so that a report stays small on a large machine.
MOST_NUMBERS = 16_000


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
        return max(2, min(MOST_POINTS, MOST_NUMBERS // self.width))

    def add(self, at: float, numbers: Numbers, weight: float = 1.0) -> None:
        for extent, number in zip(self.extents, numbers, strict=True):
            extent.add(number, weight)
        self.overall.add(sum(numbers) / len(numbers), weight)
        self.samples += 1
        self._pending.append((at, numbers))
        if len(self._pending) == self.grain:
            self._settle()

    def _settle(self) -> None:
        at, numbers = _merged(self._pending)
        self.times.append(at)
        self.values.append(numbers)
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
        """`t_s` is where a point's last reading was made; with labels a point is a list."""
        rest = [_merged(self._pending)] if self._pending else []
        times = self.times + [at for at, _ in rest]
        values = self.values + [numbers for _, numbers in rest]
        return {"t_s": times, "values": [list(v) for v in values] if self.width > 1 else [v[0] for v in values]}


def _merged(points: list[tuple[float, Numbers]]) -> tuple[float, Numbers]:
    columns = zip(*(numbers for _, numbers in points), strict=True)
    return points[-1][0], tuple(sum(column) / len(points) for column in columns)
