"""Which modules are open: to a depth, or as many as one can read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torchgauge.report.graph.places import Graph
from torchgauge.report.graph.runs import Runs

READABLE_NODES = 30
# Frames in frames: modules that hold nothing but one other would be opened without end.
READABLE_LEVELS = 12
# Of what stands directly in one module so many are shown, then how many more there are.
MOST_INSIDE = 300
# A cut that leaves out less than this says less than what it leaves out.
_WORTH_CUTTING = 10


@dataclass(frozen=True, slots=True)
class Opening:
    """The open places, and how many of the things inside one are shown."""

    places: frozenset[int]
    most: int = MOST_INSIDE


def opening(graph: Graph, runs: Runs, depth: int | None) -> Opening:
    return readable(graph, runs) if depth is None else to_depth(graph, depth)


def to_depth(graph: Graph, depth: int) -> Opening:
    """Ops show where there is no module around them but an open one."""
    places = enumerate(graph.places)
    opened = (n for n, place in places if graph.nodes[place.row].record.depth < depth and (place.children or n == 0))
    return Opening(frozenset(opened))


def readable(graph: Graph, runs: Runs) -> Opening:
    """The model itself, then level by level while all that is seen stays readable."""
    inside = folded_items(graph, runs, 0)
    opened, seen = {0}, len(inside)
    level, depth = _containers(graph, inside), 1
    while level and depth < READABLE_LEVELS:
        contents = [folded_items(graph, runs, place) for place in level]
        seen += sum(len(items) - 1 for items in contents)
        if seen > READABLE_NODES:
            break
        opened.update(level)
        depth += 1
        level = [place for items in contents for place in _containers(graph, items)]
    return Opening(frozenset(opened), MOST_INSIDE if seen_is_whole(len(inside)) else READABLE_NODES)


def seen_is_whole(inside: int) -> bool:
    return inside <= READABLE_NODES + _WORTH_CUTTING


def folded_items(graph: Graph, runs: Runs, place: int) -> list[tuple[int, bool]]:
    """What stands in a place, with the first of each run for all of it."""
    items = graph.items(place)
    return [(number, is_place) for number, is_place in items if not is_place or runs.first[number] == number]


def _containers(graph: Graph, items: Iterable[tuple[int, bool]]) -> list[int]:
    return [number for number, is_place in items if is_place and graph.places[number].children]
