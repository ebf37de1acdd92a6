"""The layout of open modules: entries on the upper edge, contents in rows, exits on the lower edge. Each is laid
out separately, then placed as one box in the module around it.

Data that enter or leave pass the frame at one point, however many things inside read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise

from torchgauge.report.graph.layering import Arc, lay_in_rows, place_columns
from torchgauge.report.graph.scene import INPUT, Edge, Item, Scene, walk

ROW_GAP, COLUMN_GAP, PADDING, HEADER = 34.0, 26.0, 16.0, 24.0
# Offset of wires that go back up from those that go down.
_BACK_WIRE_OFFSET = 16.0
# Wires that enter pass the heading straight, then turn.
_ENTRY_HEIGHT = 26.0

Size = Callable[[Item], tuple[float, float]]
Point = tuple[float, float]
_Key = tuple["Item | None", "Item | None", Item]
# The edges directly inside an open module, by their two ends (None: outside) and the item that made the data.
Traffic = dict[_Key, list[Edge]]


@dataclass(slots=True)
class Box:
    item: Item
    x: float
    y: float
    width: float
    height: float


@dataclass(slots=True)
class Wire:
    """A piece of the way of some edges, from row to row. Where two points are not above each other it bends.

    `leaves`: it begins at the op that made the data; `arrives`: it ends at the op that reads them."""

    points: list[Point]
    edges: list[Edge]
    leaves: bool
    arrives: bool
    goes_back: bool

    @property
    def nbytes(self) -> int:
        """They share their source: the widest reader sees the most of it."""
        return max(edge.nbytes for edge in self.edges)


@dataclass(slots=True)
class Area:
    """Something laid out; positions count from its own corner. Entries and exits are by the item that made the data."""

    width: float = 0.0
    height: float = 0.0
    boxes: list[Box] = field(default_factory=list)
    wires: list[Wire] = field(default_factory=list)
    entries: dict[Item, float] = field(default_factory=dict)
    exits: dict[Item, float] = field(default_factory=dict)


class ModuleLayout:
    def __init__(self, item: Item, inner: list[Area], traffic: Traffic, size: Size) -> None:
        self.item, self.inner, self.traffic = item, inner, traffic
        self.heading = 0.0 if item.around is None else size(item)[0]
        self.entering = _numbered(made for tail, _, made in traffic if tail is None)
        self.leaving = _numbered(made for _, head, made in traffic if head is None)
        self.numbers = {child: len(self.entering) + place for place, child in enumerate(item.inside)}
        self.first_exit = len(self.entering) + len(inner)
        self.arcs: dict[_Key, Arc] = {}
        for tail, head, made in traffic:
            start = self.entering[made] if tail is None else self.numbers[tail]
            end = self.first_exit + self.leaving[made] if head is None else self.numbers[head]
            ports = _BACK_WIRE_OFFSET, _BACK_WIRE_OFFSET
            if start <= end:
                ports = self._port(start, made, leaving=True), self._port(end, made, leaving=False)
            self.arcs[tail, head, made] = Arc(start, end, made, *ports)
        count, arcs = self.first_exit + len(self.leaving), list(self.arcs.values())
        areas = map(self._inner, range(count))
        self.extents = [(area.width, area.height) if area else (0.0, 0.0) for area in areas]
        widths = [width for width, _ in self.extents]
        self.layers = lay_in_rows(count, len(self.entering), len(self.leaving), arcs, widths)
        self.x = place_columns(self.layers, widths, COLUMN_GAP)
        self.rank_of = self.layers.rank_of
        self.bands = self._bands()

    def area(self) -> Area:
        halves = [width / 2 for width, _ in self.extents]
        edges = (at + (halves[vertex] if vertex < len(halves) else 0.0) for vertex, at in self.x.items())
        widest = max(edges, default=0.0)
        width = max(widest, self.heading) + 2 * PADDING
        self.x = {vertex: at + (width - widest) / 2 for vertex, at in self.x.items()}
        area = Area(width, self.bands[-1][1] + (0.0 if self.leaving else PADDING))
        area.boxes.append(Box(self.item, 0, 0, area.width, area.height))
        for place, inner in enumerate(self.inner):
            vertex = len(self.entering) + place
            dx, dy = self.x[vertex] - inner.width / 2, self._top(vertex)
            area.boxes += [Box(box.item, box.x + dx, box.y + dy, box.width, box.height) for box in inner.boxes]
            area.wires += [replace(wire, points=[(x + dx, y + dy) for x, y in wire.points]) for wire in inner.wires]
        area.wires += self._wires()
        area.entries = {made: self.x[place] for made, place in self.entering.items()}
        area.exits = {made: self.x[self.first_exit + place] for made, place in self.leaving.items()}
        return area

    def _port(self, vertex: int, made: Item, *, leaving: bool) -> float:
        """The point where data pass the frame of an open module, from its middle."""
        area = self._inner(vertex)
        if area is None:
            return 0.0
        ports = area.exits if leaving else area.entries
        return ports[made] - area.width / 2 if made in ports else 0.0

    def _inner(self, vertex: int) -> Area | None:
        place = vertex - len(self.entering)
        return self.inner[place] if 0 <= place < len(self.inner) else None

    def _bands(self) -> list[tuple[float, float]]:
        """Upper and lower edge of each row; entries and exits lie on the frame."""
        bands: list[tuple[float, float]] = []
        at = PADDING if self.item.around is None else HEADER + (_ENTRY_HEIGHT if self.entering else PADDING / 2)
        for rank, row in enumerate(self.layers.rows):
            if rank == 0 and self.entering:
                bands.append((0.0, 0.0))
                continue
            height = max(self.extents[vertex][1] if vertex < len(self.extents) else 0.0 for vertex in row)
            bands.append((at, at + height))
            at += height + ROW_GAP
        if self.leaving:
            end = at - 2 * ROW_GAP + HEADER
            bands[-1] = (end, end)
        return bands

    def _top(self, vertex: int) -> float:
        upper, lower = self.bands[self.rank_of[vertex]]
        height = self.extents[vertex][1] if vertex < len(self.extents) else lower - upper
        # An input is placed near its reader, also next to a module that takes a whole page.
        return lower - height if self._is_input(vertex) else upper + (lower - upper - height) / 2

    def _is_input(self, vertex: int) -> bool:
        place = vertex - len(self.entering)
        return 0 <= place < len(self.item.inside) and self.item.inside[place].kind == INPUT

    def _wires(self) -> list[Wire]:
        """Arcs that share a piece of their way share its wire."""
        wires: dict[tuple[object, ...], Wire] = {}
        for key, arc in self.arcs.items():
            for a, b in pairwise(arc.way):
                a_x, b_x = arc.tail_x * (a == arc.tail), arc.head_x * (b == arc.head)
                wire = wires.get((a, b, a_x, b_x))
                if wire is None:
                    points = self._points(a, b, self.x[a] + a_x, self.x[b] + b_x)
                    arrives = b == arc.head and key[1] is not None and (arc.goes_back or not key[1].inside)
                    wire = wires[a, b, a_x, b_x] = Wire(
                        points, [], key[0] is key[2] and a == arc.tail, arrives, arc.goes_back
                    )
                wire.edges += self.traffic[key]
        return list(wires.values())

    def _points(self, a: int, b: int, a_x: float, b_x: float) -> list[Point]:
        """Straight past the items of a row, bent only between the rows."""
        upper, lower = (a, b) if self.rank_of[a] < self.rank_of[b] else (b, a)
        upper_x, lower_x = (a_x, b_x) if upper == a else (b_x, a_x)
        end = self.bands[self.rank_of[lower]]
        turn = HEADER if upper < len(self.entering) else self.bands[self.rank_of[upper]][1]
        top, bottom = self.bands[self.rank_of[upper]]
        start = bottom if self._is_input(upper) else bottom + top - self._top(upper)
        points = [(upper_x, start), (upper_x, turn), (lower_x, end[0])]
        points.append((lower_x, end[1] if lower >= len(self.extents) else self._top(lower)))
        points = [point for place, point in enumerate(points) if place == 0 or point != points[place - 1]]
        return points if upper == a else points[::-1]


def _numbered(items: Iterable[Item]) -> dict[Item, int]:
    return {item: place for place, item in enumerate(dict.fromkeys(items))}


def place_scene(scene: Scene, size: Size) -> Area:
    """`size` gives width and height of a closed item, and the room that the heading of an open one needs."""
    items = list(walk(scene.root))
    # Each edge in parts: up out of the open modules around its source, across, down into those around its target. An
    # edge that goes back leaves and arrives at the frames: inside it would have to come from the wrong side.
    traffic: dict[Item, Traffic] = {item: {} for item in items}
    order = {item: number for number, item in enumerate(items)}
    for edge in scene.edges:
        up, down = _outwards(edge.source), _outwards(edge.target)
        while up[-2] is down[-2]:
            up.pop()
            down.pop()
        parts: list[tuple[Item, Item | None, Item | None]] = [(up[-1], up[-2], down[-2])]
        if order[up[-2]] < order[down[-2]]:
            parts += [(outer, inner, None) for inner, outer in pairwise(up[:-1])]
            parts += [(outer, None, inner) for inner, outer in pairwise(down[:-1])]
        for around, tail, head in parts:
            traffic[around].setdefault((tail, head, edge.source), []).append(edge)
    areas: dict[Item, Area] = {}
    for item in reversed(items):  # contents before containers
        inner = [areas.pop(child) for child in item.inside]
        if inner:
            areas[item] = ModuleLayout(item, inner, traffic[item], size).area()
        else:
            width, height = size(item)
            areas[item] = Area(width, height, [Box(item, 0, 0, width, height)])
    return areas[scene.root]


def _outwards(item: Item) -> list[Item]:
    chain = [item]
    while (around := chain[-1].around) is not None:
        chain.append(around)
    return chain
