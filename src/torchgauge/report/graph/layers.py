"""Vertices in rows, each below what it reads (K. Sugiyama et al. 1981): rows, ways past them, few crossings.

Vertices are numbered in the order of the run: an arc to a smaller number goes back up and is turned round.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import ceil, sqrt

_SWEEPS = 8
# So many beside each other, and no wider, still fit a page.
_GRID, _PAGE = 6, 660.0
_WIDEST = 1e6


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
    segments = _segments(count, arcs, ranks, rows)
    layers = Layers(count, rows, segments)
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
        # What reads nothing (a constant) stands right above its first reader.
        readers = [ranks[lower] for lower in below[vertex] if lower in inner]
        if readers and not above[vertex]:
            ranks[vertex] = max(min(readers) - 1, min(entries, 1))
    _rank_loose(ranks, [vertex for vertex in inner if not above[vertex] and not below[vertex]], entries, widths)
    last = max((ranks[vertex] for vertex in inner), default=0) + 1
    for vertex in range(count - exits, count):
        ranks[vertex] = last
    return ranks


def _rank_loose(ranks: list[int], loose: list[int], entries: int, widths: Sequence[float]) -> None:
    """What nothing flows to or from stands in a grid below the rest."""
    others = set(range(entries, len(ranks))) - set(loose)
    bound = [ranks[vertex] for vertex in others]
    rank = max(bound, default=min(entries, 1) - 1) + 1
    columns = min(ceil(sqrt(len(loose) * 1.5)), _GRID)
    used, wide = 0, 0.0
    for vertex in loose:
        if used == columns or (used and wide + widths[vertex] > _PAGE):
            rank, used, wide = rank + 1, 0, 0.0
        ranks[vertex], used, wide = rank, used + 1, wide + widths[vertex]


def _segments(count: int, arcs: Sequence[Arc], ranks: list[int], rows: list[list[int]]) -> list[Segment]:
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
    return list(segments)


def _uncross(layers: Layers) -> None:
    """Sweep down and up, each row by the mean place of its neighbours in the last one; the best order seen stays."""
    above, below = neighbours(layers, "upper"), neighbours(layers, "lower")
    best, order = crossings(layers), [list(row) for row in layers.rows]
    for sweep in range(_SWEEPS):
        if best == 0:
            break
        rows, sides = (layers.rows[1:], above) if sweep % 2 == 0 else (layers.rows[-2::-1], below)
        places = _places(layers.rows)
        for row in rows:
            means: dict[int, float] = {}
            for vertex in row:
                beside = [places[other] + _port(other, segment) for other, segment in sides.get(vertex, ())]
                means[vertex] = sum(beside) / len(beside) if beside else places[vertex]
            row.sort(key=means.__getitem__)
            places.update((vertex, place) for place, vertex in enumerate(row))
        if (found := crossings(layers)) < best:
            best, order = found, [list(row) for row in layers.rows]
    layers.rows[:] = order


def neighbours(layers: Layers, side: str) -> dict[int, list[tuple[int, Segment]]]:
    """By vertex: its neighbours on one side, with the segment between."""
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
    """Where on a vertex a segment ends, as a part of a place: below one half for whatever fits a page."""
    return (segment.upper_x if vertex == segment.upper else segment.lower_x) / _WIDEST
