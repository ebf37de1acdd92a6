"""Where the vertices of a row stand: in line with their neighbours as far as the order and the room allow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from torchgauge.report.graph.layers import Layers, Segment, neighbours

_ANYWHERE = float("inf")


@dataclass(eq=False, slots=True)
class _Way:
    """`left` and `right` are what stands beside its bends."""

    source: int
    bends: list[int]
    left: list[int]
    right: list[int]


def straighten(layers: Layers, x: dict[int, float], widths: Sequence[float], gap: float) -> None:
    """Move each way as near to its source as the vertices and the other ways beside it allow. A way for which there is
    no column keeps its place: one of two that cross, and one that has to go round something."""
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


_ROUNDS = 6
# The line of vertices should be straight, then a long way past rows; where that forks off or joins it gives way.
_LINE, _STRAIGHT_WAY, _FORK, _JOIN = 4.0, 2.0, 1.5, 1.0
# What has no neighbours on one side stays where it is, if it can.
_STAYS = 0.1

Wish = tuple[float, float]  # where, and how much it matters


def stand(layers: Layers, widths: Sequence[float], gap: float) -> dict[int, float]:
    """The middle of each vertex and bend; the leftmost edge is at 0."""
    x: dict[int, float] = {}
    for row in layers.rows:
        room = _room(row, widths, gap)
        left = sum(room) / 2
        x.update(zip(row, (at - left for at in accumulate(room, initial=0.0)), strict=True))
    above, below = neighbours(layers, "upper"), neighbours(layers, "lower")
    both = {v: above[v] + below[v] for v in above.keys() & below.keys()}
    for _ in range(_ROUNDS):
        for rows, sides in ((layers.rows[::-1], below), (layers.rows, above)):
            for row in rows:
                # A bend looks both ways: a long way that forks off turns once.
                ways = [(both if v >= layers.count else sides).get(v, []) for v in row]
                wishes = [_wish(v, x, way, layers.count) for v, way in zip(row, ways, strict=True)]
                x.update(zip(row, settle(wishes, _room(row, widths, gap)), strict=True))
    straighten(layers, x, widths, gap)
    left = min((at - _width(v, widths) / 2 for v, at in x.items()), default=0.0)
    return {vertex: at - left for vertex, at in x.items()}


def settle(wishes: Sequence[Wish], room: Sequence[float]) -> list[float]:
    """Positions in this order, `room` apart at least, with the least weighted sum of distances from the wishes.

    Less the room, positions only have to ascend: blocks that want to stand the wrong way round merge and stand at
    their weighted median.
    """
    offsets = list(accumulate(room, initial=0.0))
    blocks: list[tuple[float, list[Wish]]] = []
    for (at, weight), offset in zip(wishes, offsets, strict=False):
        members = [(at - offset, weight)]
        middle = members[0][0]
        while blocks and blocks[-1][0] > middle:
            members = blocks.pop()[1] + members
            middle = weighted_median(members)
        blocks.append((middle, members))
    middles = [middle for middle, members in blocks for _ in members]
    return [middle + offset for middle, offset in zip(middles, offsets, strict=False)]


def weighted_median(wishes: Sequence[Wish]) -> float:
    """Where the weights of both sides balance; between two values that both do, their middle."""
    ordered = sorted(wishes)
    half, seen = sum(weight for _, weight in ordered) / 2, 0.0
    for place, (value, weight) in enumerate(ordered):
        seen += weight
        if seen > half:
            return value
        if seen == half:
            return (value + ordered[place + 1][0]) / 2
    raise ValueError("a median needs weights above 0")


def _wish(vertex: int, x: dict[int, float], sides: list[tuple[int, Segment]], count: int) -> Wish:
    if not sides:
        return x[vertex], _STAYS
    wishes = []
    for other, segment in sides:
        # What makes the two ends of the segment meet, added to the middle of the other vertex.
        shift = segment.upper_x - segment.lower_x
        if segment.upper < count:
            weight = _LINE if segment.lower < count else _FORK
        else:
            weight = _JOIN if segment.lower < count else _STRAIGHT_WAY
        wishes.append((x[other] + (shift if segment.lower == vertex else -shift), weight))
    return weighted_median(wishes), sum(weight for _, weight in wishes)


def _room(row: Sequence[int], widths: Sequence[float], gap: float) -> list[float]:
    """From the middle of each to the middle of the next."""
    return [(_width(a, widths) + _width(b, widths)) / 2 + gap for a, b in pairwise(row)]


def _width(vertex: int, widths: Sequence[float]) -> float:
    return widths[vertex] if vertex < len(widths) else 0.0
