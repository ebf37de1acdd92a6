"""Vertices in rows, each below what it reads (K. Sugiyama et al. 1981): rows, ways past them, few crossings; and
coordinates, in line with their neighbours as far as the order and the room allow.

Vertices are numbered in the order of the run: an arc to a smaller number goes back up and is reversed.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from math import ceil, sqrt

_CROSSING_SWEEPS = 8
# This many in a row, up to this width, still fit a page.
_GRID_COLUMNS, _PAGE_WIDTH = 6, 660.0
_MAX_WIDTH = 1e6


@dataclass(eq=False, slots=True)
class Arc:
    """Arcs of one strand carry the same data and share their way. `tail_x` and `head_x` are where it is attached, from
    the middle of the vertex."""

    tail: int
    head: int
    strand: Hashable
    tail_x: float = 0.0
    head_x: float = 0.0
    way: list[int] = field(default_factory=list)

    @property
    def goes_back(self) -> bool:
        return self.head < self.tail


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of an arc between two neighbouring rows."""

    upper: int
    lower: int
    upper_x: float = 0.0
    lower_x: float = 0.0


@dataclass
class Layers:
    """`rows` hold vertices; numbers from `count` on are bends, where an arc passes a row."""

    count: int
    rows: list[list[int]]
    segments: list[Segment]

    @cached_property
    def rank_of(self) -> dict[int, int]:
        return {vertex: rank for rank, row in enumerate(self.rows) for vertex in row}


def lay_in_rows(
    count: int, entries: int, exits: int, arcs: Sequence[Arc], widths: Sequence[float] | None = None
) -> Layers:
    """The first `entries` of the vertices go into a row above all, the last `exits` into one below all."""
    ranks = _ranks(count, entries, exits, arcs, widths or [0.0] * count)
    rows: list[list[int]] = [[] for _ in range(max(ranks, default=-1) + 1)]
    for vertex, rank in enumerate(ranks):
        rows[rank].append(vertex)
    bends: dict[tuple[Hashable, int], int] = {}
    segments: dict[Segment, None] = {}
    for arc in arcs:
        upper, lower = sorted((arc.tail, arc.head))
        strand = (arc.strand, arc.tail if not arc.goes_back else (arc.tail, arc.head))
        way = [upper]
        for rank in range(ranks[upper] + 1, ranks[lower]):
            if (strand, rank) not in bends:
                bends[strand, rank] = count + len(bends)
                rows[rank].append(bends[strand, rank])
            way.append(bends[strand, rank])
        way.append(lower)
        at = {arc.tail: arc.tail_x, arc.head: arc.head_x}
        for a, b in pairwise(way):
            segments[Segment(a, b, at.get(a, 0.0), at.get(b, 0.0))] = None
        arc.way = way[::-1] if arc.goes_back else way
    layers = Layers(count, rows, list(segments))
    _uncross(layers)
    return layers


def _ranks(count: int, entries: int, exits: int, arcs: Sequence[Arc], widths: Sequence[float]) -> list[int]:
    below: list[list[int]] = [[] for _ in range(count)]
    above: list[list[int]] = [[] for _ in range(count)]
    for arc in arcs:
        low, high = sorted((arc.tail, arc.head))
        below[low].append(high)
        above[high].append(low)
    ranks = [0] * count
    inner = range(entries, count - exits)
    for vertex in inner:
        ranks[vertex] = max((ranks[upper] + 1 for upper in above[vertex]), default=min(entries, 1))
    for vertex in reversed(inner):
        # A constant, which reads nothing, goes right above its first reader.
        readers = [ranks[lower] for lower in below[vertex] if lower in inner]
        if readers and not above[vertex]:
            ranks[vertex] = max(min(readers) - 1, min(entries, 1))
    # Vertices without arcs go into a grid below the rest.
    loose = [vertex for vertex in inner if not above[vertex] and not below[vertex]]
    bound = [ranks[vertex] for vertex in set(range(entries, count)) - set(loose)]
    rank = max(bound, default=min(entries, 1) - 1) + 1
    columns = min(ceil(sqrt(len(loose) * 1.5)), _GRID_COLUMNS)
    used, wide = 0, 0.0
    for vertex in loose:
        if used == columns or (used and wide + widths[vertex] > _PAGE_WIDTH):
            rank, used, wide = rank + 1, 0, 0.0
        ranks[vertex], used, wide = rank, used + 1, wide + widths[vertex]
    last = max((ranks[vertex] for vertex in inner), default=0) + 1
    for vertex in range(count - exits, count):
        ranks[vertex] = last
    return ranks


def _uncross(layers: Layers) -> None:
    """Sweep down and up, each row by the mean place of its neighbours in the last one; the best order seen stays."""
    above, below = neighbours(layers, "upper"), neighbours(layers, "lower")
    best, order = crossings(layers), [list(row) for row in layers.rows]
    for sweep in range(_CROSSING_SWEEPS):
        if best == 0:
            break
        rows, sides = (layers.rows[1:], above) if sweep % 2 == 0 else (layers.rows[-2::-1], below)
        places = _places(layers.rows)
        for row in rows:
            means: dict[int, float] = {}
            for vertex in row:
                ends = [places[other] + _port(other, segment) for other, segment in sides.get(vertex, ())]
                means[vertex] = sum(ends) / len(ends) if ends else places[vertex]
            row.sort(key=means.__getitem__)
            places.update((vertex, place) for place, vertex in enumerate(row))
        if (found := crossings(layers)) < best:
            best, order = found, [list(row) for row in layers.rows]
    layers.rows[:] = order


def neighbours(layers: Layers, side: str) -> dict[int, list[tuple[int, Segment]]]:
    """The neighbours of each vertex on one side, with the segments that lead to them."""
    found: dict[int, list[tuple[int, Segment]]] = {}
    for segment in layers.segments:
        vertex, other = (segment.lower, segment.upper) if side == "upper" else (segment.upper, segment.lower)
        found.setdefault(vertex, []).append((other, segment))
    return found


def crossings(layers: Layers) -> int:
    """Pairs of segments that cross: for each, those before it in the order of the upper row that end further right."""
    places = _places(layers.rows)
    ends: dict[int, list[tuple[float, float]]] = {}
    for segment in layers.segments:
        upper, lower = (places[vertex] + _port(vertex, segment) for vertex in (segment.upper, segment.lower))
        ends.setdefault(layers.rank_of[segment.upper], []).append((upper, lower))
    total = 0
    for pairs in ends.values():
        seen: list[float] = []
        for _, low in sorted(pairs):
            total += len(seen) - bisect_right(seen, low)
            insort(seen, low)
    return total


def _places(rows: list[list[int]]) -> dict[int, int]:
    return {vertex: place for row in rows for place, vertex in enumerate(row)}


def _port(vertex: int, segment: Segment) -> float:
    """The end of a segment on a vertex, as a fraction of a place: below one half for anything that fits a page."""
    return (segment.upper_x if vertex == segment.upper else segment.lower_x) / _MAX_WIDTH


_ANYWHERE = float("inf")


@dataclass(eq=False, slots=True)
class _Way:
    """`left` and `right` are the neighbours of its bends."""

    source: int
    bends: list[int]
    left: list[int]
    right: list[int]


def straighten(layers: Layers, x: dict[int, float], widths: Sequence[float], gap: float) -> None:
    """Move each way as near to its source as the neighbouring vertices and ways allow. A way without a free column
    keeps its place: one of two that cross, and one that has to go around something."""
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
    columns = _Columns(x, widths, gap, {bend: way for way in ways for bend in way.bends})
    while ways:
        ways = columns.from_the_left(ways)
        low, high = columns.lowest(ways), columns.highest(ways)
        worst = max(ways, key=lambda way: low[way] - high[way])
        if low[worst] <= high[worst]:
            break
        ways.remove(worst)
    for way in ways:
        # The ways on its left have been placed already.
        x.update(dict.fromkeys(way.bends, min(max(x[way.source], columns.lowest([way])[way]), high[way])))


@dataclass(frozen=True, slots=True)
class _Columns:
    x: dict[int, float]
    widths: Sequence[float]
    gap: float
    way_of: dict[int, _Way]

    def from_the_left(self, ways: list[_Way]) -> list[_Way]:
        """The ways ordered from left to right; of ways that cross, some are dropped."""
        ordered: list[_Way] = []
        waiting = dict.fromkeys(ways)
        while waiting:
            ready = [way for way in waiting if not any(self.way_of.get(other) in waiting for other in way.left)]
            ordered += ready
            for way in ready or list(waiting)[:1]:
                del waiting[way]
        return ordered

    def lowest(self, ways: Iterable[_Way]) -> dict[_Way, float]:
        """The leftmost position of each, if those before it are as far left as possible."""
        found: dict[_Way, float] = {}
        for way in ways:
            edges = (self._edge(other, 1, found) for other in way.left)
            found[way] = max((edge + self.gap for edge in edges), default=-_ANYWHERE)
        return found

    def highest(self, ways: Sequence[_Way]) -> dict[_Way, float]:
        """The rightmost position of each, if those after it are as far right as possible."""
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


_PLACING_ROUNDS = 6
# Lines of vertices are straightest, then long ways past rows; where a way forks off or joins a line, it bends.
_LINE, _STRAIGHT_WAY, _FORK, _JOIN = 4.0, 2.0, 1.5, 1.0
# A vertex without neighbours on one side stays in its place, if it can.
_STAYING_WEIGHT = 0.1

Wish = tuple[float, float]  # where, and how much it matters


def place_columns(layers: Layers, widths: Sequence[float], gap: float) -> dict[int, float]:
    """The middle of each vertex and bend; the leftmost edge is at 0."""
    x: dict[int, float] = {}
    for row in layers.rows:
        room = _room(row, widths, gap)
        left = sum(room) / 2
        x.update(zip(row, (at - left for at in accumulate(room, initial=0.0)), strict=True))
    above, below = neighbours(layers, "upper"), neighbours(layers, "lower")
    both = {v: above[v] + below[v] for v in above.keys() & below.keys()}
    for _ in range(_PLACING_ROUNDS):
        for rows, sides in ((layers.rows[::-1], below), (layers.rows, above)):
            for row in rows:
                # A bend looks both ways: a long way that forks off turns once.
                ways = [(both if v >= layers.count else sides).get(v, []) for v in row]
                wishes = [_wish(v, x, way, layers.count) for v, way in zip(row, ways, strict=True)]
                x.update(zip(row, fit_positions(wishes, _room(row, widths, gap)), strict=True))
    straighten(layers, x, widths, gap)
    left = min((at - _width(v, widths) / 2 for v, at in x.items()), default=0.0)
    return {vertex: at - left for vertex, at in x.items()}


def fit_positions(wishes: Sequence[Wish], room: Sequence[float]) -> list[float]:
    """Positions in this order, `room` apart at least, with the least weighted sum of distances from the wishes.

    Less the room, positions only have to ascend: blocks in the wrong order merge and take their
    weighted median.
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
    """The value at which the weights of both sides balance; the middle if two values do."""
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
        return x[vertex], _STAYING_WEIGHT
    wishes = []
    for other, segment in sides:
        # Added to the middle of the other vertex, this makes the two ends of the segment meet.
        shift = segment.upper_x - segment.lower_x
        if segment.upper < count:
            weight = _LINE if segment.lower < count else _FORK
        else:
            weight = _JOIN if segment.lower < count else _STRAIGHT_WAY
        wishes.append((x[other] + (shift if segment.lower == vertex else -shift), weight))
    return weighted_median(wishes), sum(weight for _, weight in wishes)


def _room(row: Sequence[int], widths: Sequence[float], gap: float) -> list[float]:
    """The least distances between the middles of neighbours."""
    return [(_width(a, widths) + _width(b, widths)) / 2 + gap for a, b in pairwise(row)]


def _width(vertex: int, widths: Sequence[float]) -> float:
    return widths[vertex] if vertex < len(widths) else 0.0
