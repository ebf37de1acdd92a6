"""Long ways past many rows: one column for the whole of each, where there is one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchgauge.report.graph.layers import Layers

_ANYWHERE = float("inf")


@dataclass(eq=False, slots=True)
class _Way:
    """`left` and `right` are what stands beside its bends."""

    source: int
    bends: list[int]
    left: list[int]
    right: list[int]


def straighten(layers: Layers, x: dict[int, float], widths: Sequence[float], gap: float) -> None:
    """Each way stands as near to its source as the vertices and the other ways beside it allow. Those for which there
    is no column stay as they are: one of two that cross, and one that has to go round something."""
    ways = _long_ways(layers)
    beside = _Beside(x, widths, gap, {bend: way for way in ways for bend in way.bends})
    while ways:
        ways = beside.from_the_left(ways)
        low, high = beside.lowest(ways), beside.highest(ways)
        worst = max(ways, key=lambda way: low[way] - high[way])
        if low[worst] <= high[worst]:
            break
        ways.remove(worst)
    for way in ways:
        # What is left of it stands already.
        x.update(dict.fromkeys(way.bends, min(max(x[way.source], beside.lowest([way])[way]), high[way])))


@dataclass(frozen=True, slots=True)
class _Beside:
    x: dict[int, float]
    widths: Sequence[float]
    gap: float
    way_of: dict[int, _Way]

    def from_the_left(self, ways: list[_Way]) -> list[_Way]:
        """Each after those that are left of it; without some of those that cross."""
        ordered: list[_Way] = []
        waiting = dict.fromkeys(ways)
        while waiting:
            ready = [way for way in waiting if not any(self.way_of.get(other) in waiting for other in way.left)]
            ordered += ready
            for way in ready or list(waiting)[:1]:
                del waiting[way]
        return ordered

    def lowest(self, ways: Iterable[_Way]) -> dict[_Way, float]:
        """How far left each may stand, where those before it stand as far left as they may."""
        found: dict[_Way, float] = {}
        for way in ways:
            edges = (self._edge(other, 1, found) for other in way.left)
            found[way] = max((edge + self.gap for edge in edges), default=-_ANYWHERE)
        return found

    def highest(self, ways: Sequence[_Way]) -> dict[_Way, float]:
        """How far right each may stand, where those behind it stand as far right as they may."""
        found: dict[_Way, float] = {}
        for way in reversed(ways):
            edges = (self._edge(other, -1, found) for other in way.right)
            found[way] = min((edge - self.gap for edge in edges), default=_ANYWHERE)
        return found

    def _edge(self, vertex: int, side: int, found: dict[_Way, float]) -> float:
        way = self.way_of.get(vertex)
        if way is not None:
            return found.get(way, self.x[vertex])
        return self.x[vertex] + side * self.widths[vertex] / 2


def _long_ways(layers: Layers) -> list[_Way]:
    onward = {s.upper: s.lower for s in layers.segments if min(s.upper, s.lower) >= layers.count}
    ways = []
    for segment in layers.segments:
        if segment.upper < layers.count <= segment.lower:
            bends = [segment.lower]
            while bends[-1] in onward:
                bends.append(onward[bends[-1]])
            left, right = [], []
            for bend in bends:
                row = layers.rows[layers.rank_of[bend]]
                place = row.index(bend)
                left += row[max(place - 1, 0) : place]
                right += row[place + 1 : place + 2]
            ways.append(_Way(segment.upper, bends, left, right))
    return ways
