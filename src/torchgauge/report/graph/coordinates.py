"""Where the vertices of a row stand: in line with their neighbours as far as the order and the room allow."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from torchgauge.report.graph.columns import straighten
from torchgauge.report.graph.layers import Layers, Segment, neighbours

_ROUNDS = 6
# The line of vertices should be straight, then a long way past rows; where that forks off or joins it gives way.
_LINE, _STRAIGHT_WAY, _FORK, _JOIN = 4.0, 2.0, 1.5, 1.0
# What has no neighbours on one side stays where it is, if it can.
_STAYS = 0.1

Wish = tuple[float, float]  # where, and how much it matters


def stand(layers: Layers, widths: Sequence[float], gap: float) -> dict[int, float]:
    """The middle of each vertex and bend; the leftmost edge is at 0."""
    x = {vertex: at for row in layers.rows for vertex, at in _packed(row, widths, gap)}
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
    wishes = [(x[other] + _offset(vertex, segment), _weight(segment, count)) for other, segment in sides]
    return weighted_median(wishes), sum(weight for _, weight in wishes)


def _offset(vertex: int, segment: Segment) -> float:
    """What makes the two ends of the segment meet, added to the middle of the other vertex."""
    shift = segment.upper_x - segment.lower_x
    return shift if segment.lower == vertex else -shift


def _weight(segment: Segment, count: int) -> float:
    if segment.upper < count:
        return _LINE if segment.lower < count else _FORK
    return _JOIN if segment.lower < count else _STRAIGHT_WAY


def _packed(row: Sequence[int], widths: Sequence[float], gap: float) -> list[tuple[int, float]]:
    room = _room(row, widths, gap)
    return [(vertex, at - sum(room) / 2) for vertex, at in zip(row, accumulate(room, initial=0.0), strict=False)]


def _room(row: Sequence[int], widths: Sequence[float], gap: float) -> list[float]:
    """From the middle of each to the middle of the next."""
    return [(_width(a, widths) + _width(b, widths)) / 2 + gap for a, b in pairwise(row)]


def _width(vertex: int, widths: Sequence[float]) -> float:
    return widths[vertex] if vertex < len(widths) else 0.0
