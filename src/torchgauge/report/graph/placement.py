"""Where everything stands: each open module is laid out by itself, then stands as one box in the module around it."""

from __future__ import annotations

from itertools import pairwise

from torchgauge.report.graph.room import Area, Box, Room, Size, Traffic, Wire
from torchgauge.report.graph.scene import Item, Scene, walk

__all__ = ["Area", "Box", "Wire", "place_scene"]


def place_scene(scene: Scene, size: Size) -> Area:
    """`size` gives width and height of a closed item, and the room that the heading of an open one needs."""
    traffic, areas = _traffic(scene), dict[Item, Area]()
    for item in reversed(list(walk(scene.root))):  # what is inside before what is around it
        inner = [areas.pop(child) for child in item.inside]
        areas[item] = Room(item, inner, traffic.get(item, Traffic()), size).area() if inner else _closed(item, size)
    return areas[scene.root]


def _closed(item: Item, size: Size) -> Area:
    width, height = size(item)
    return Area(width, height, [Box(item, 0, 0, width, height)])


def _traffic(scene: Scene) -> dict[Item, Traffic]:
    """Each edge in parts: up out of the open modules around its source, across, down into those around its target.

    What goes back leaves and arrives at the frames: inside it would have to come from the wrong side."""
    traffic: dict[Item, Traffic] = {}
    order = {item: number for number, item in enumerate(walk(scene.root))}
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
