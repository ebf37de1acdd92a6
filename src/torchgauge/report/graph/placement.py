"""Where everything stands: each open module is laid out by itself, then stands as one box in the module around it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from torchgauge.report.graph.room import Area, Box, Room, Size, Traffic, Wire
from torchgauge.report.graph.scene import Item, Scene

__all__ = ["Area", "Box", "Wire", "place_scene"]


def place_scene(scene: Scene, size: Size) -> Area:
    """`size` gives width and height of a closed item, and the room that the heading of an open one needs."""
    return _lay_out(scene.root, _traffic(scene), size)


def _lay_out(item: Item, traffic: dict[Item, Traffic], size: Size) -> Area:
    if not item.inside:
        width, height = size(item)
        return Area(width, height, [Box(item, 0, 0, width, height)])
    inner = [_lay_out(child, traffic, size) for child in item.inside]
    return Room(item, inner, traffic.get(item, Traffic()), size).area()


def _traffic(scene: Scene) -> dict[Item, Traffic]:
    """Each edge in parts: up out of the open modules around its source, across, down into those around its target.

    What goes back leaves and arrives at the frames: inside it would have to come from the wrong side."""
    traffic: dict[Item, Traffic] = {}
    order = {item: number for number, item in enumerate(_walk(scene.root))}
    for edge in scene.edges:
        up, down = _outwards(edge.source), _outwards(edge.target)
        while up[-2] is down[-2]:
            up.pop()
            down.pop()
        traffic.setdefault(up[-1], Traffic()).add(up[-2], down[-2], edge)
        if order[up[-2]] > order[down[-2]]:
            continue
        for inner, outer in pairwise(up[:-1]):
            traffic.setdefault(outer, Traffic()).add(inner, None, edge)
        for inner, outer in pairwise(down[:-1]):
            traffic.setdefault(outer, Traffic()).add(None, inner, edge)
    return traffic


def _outwards(item: Item) -> list[Item]:
    chain = [item]
    while (around := chain[-1].around) is not None:
        chain.append(around)
    return chain


def _walk(item: Item) -> Iterator[Item]:
    yield item
    for child in item.inside:
        yield from _walk(child)
