"""Which modules are open (to a depth, or as many as one can read), and what is in view then: open modules with their
contents, closed ones, ops, and the data that flow between these.

Only the first of a run of equal blocks is drawn, without the data that go from one block of the run to the next.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from torchgauge.facts import TensorSpec
from torchgauge.report.graph.places import Graph, Runs

READABLE_NODES = 30
# Frames in frames: modules that hold nothing but one other would be opened without end.
READABLE_LEVELS = 12
# The most items shown directly in one module; the others are counted.
MAX_ITEMS_OF_MODULE = 300
# Fewer items than this are not worth leaving out.
_WORTH_CUTTING = 10


@dataclass(frozen=True, slots=True)
class Opening:
    """The open places, and how many of the things inside one are shown."""

    places: frozenset[int]
    most: int = MAX_ITEMS_OF_MODULE


def opening(graph: Graph, runs: Runs, depth: int | None) -> Opening:
    return readable(graph, runs) if depth is None else to_depth(graph, depth)


def to_depth(graph: Graph, depth: int) -> Opening:
    """Ops show where all modules around them are open."""
    places = enumerate(graph.places)
    opened = (n for n, place in places if graph.nodes[place.row].record.depth < depth and (place.children or n == 0))
    return Opening(frozenset(opened))


def readable(graph: Graph, runs: Runs) -> Opening:
    """The model itself, then level by level while everything in view stays readable."""
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
    is_whole = len(inside) <= READABLE_NODES + _WORTH_CUTTING
    return Opening(frozenset(opened), MAX_ITEMS_OF_MODULE if is_whole else READABLE_NODES)


def folded_items(graph: Graph, runs: Runs, place: int) -> list[tuple[int, bool]]:
    """The items of a place, with the first of each run for all of it."""
    items = graph.items(place)
    return [(number, is_place) for number, is_place in items if not is_place or runs.first[number] == number]


def _containers(graph: Graph, items: Iterable[tuple[int, bool]]) -> list[int]:
    return [number for number, is_place in items if is_place and graph.places[number].children]


PLACE, STEP, MORE, INPUT, OUTPUT = "place", "step", "more", "input", "output"


@dataclass(eq=False, slots=True)
class Item:
    """`number` is that of the place, step or input. An item of the kind MORE counts the contents of a place that are
    left out: `number` is the place's. For a place `count` is the length of its run."""

    kind: str
    number: int
    count: int = 1
    inside: list[Item] = field(default_factory=list)
    around: Item | None = None


@dataclass(eq=False, slots=True)
class Edge:
    """`tensors` are those that flow, by the step that made them (none for what comes from outside)."""

    source: Item
    target: Item
    tensors: dict[tuple[int | None, TensorSpec], None] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Several readers see one tensor in several shapes: it flows once."""
        largest: dict[int | None, int] = {}
        for step, spec in self.tensors:
            largest[step] = max(largest.get(step, 0), spec.distinct_bytes)
        return sum(largest.values())


def walk(root: Item) -> Iterator[Item]:
    """An item and all inside it, preorder."""
    waiting = [root]
    while waiting:
        item = waiting.pop()
        yield item
        waiting.extend(reversed(item.inside))


@dataclass(slots=True)
class Scene:
    root: Item
    edges: list[Edge]


def build_scene(graph: Graph, runs: Runs, opening: Opening) -> Scene:
    staging = _Staging(graph, runs, opening)
    staging.fill()
    return Scene(staging.root, staging.edges())


class _Staging:
    def __init__(self, graph: Graph, runs: Runs, opening: Opening) -> None:
        self.graph, self.runs, self.opening = graph, runs, opening
        self.root = Item(PLACE, 0)
        self.item_of_place: dict[int, Item] = {0: self.root}
        self.item_of_step: dict[int, Item] = {}
        # For each place the one that is drawn instead (equal blocks number the places in them equally), and its depth.
        self.stand_ins: list[int] = []
        self.levels: list[int] = []
        for number, place in enumerate(graph.places):
            parent = place.parent
            like = number if parent < 0 else self.stand_ins[parent] + number - parent
            self.stand_ins.append(number if runs.first[like] == number else self.stand_ins[runs.first[like]])
            self.levels.append(0 if parent < 0 else self.levels[parent] + 1)
        self.found: dict[tuple[Item, Item], Edge] = {}

    def fill(self) -> None:
        """Everything that is open, from the model inwards."""
        waiting = [self.root]
        for around in waiting:
            if around.number not in self.opening.places:
                continue
            items = folded_items(self.graph, self.runs, around.number)
            for number, is_place in items[: self.opening.most]:
                kind, count = (PLACE, self.runs.count(number)) if is_place else (STEP, 1)
                item = Item(kind, number, count, around=around)
                around.inside.append(item)
                (self.item_of_place if is_place else self.item_of_step)[number] = item
            if rest := items[self.opening.most :]:
                more = Item(MORE, around.number, len(rest), around=around)
                around.inside.append(more)
                for number, is_place in rest:
                    (self.item_of_place if is_place else self.item_of_step)[number] = more
            waiting += [child for child in around.inside if child.kind == PLACE]

    def edges(self) -> list[Edge]:
        flow = self.graph.flow
        for link in flow.links:
            if self._is_drawn(link.source, link.target):
                self._draw(self.seen(link.source), self.seen(link.target), link.source, link.spec)
        entering = []
        for number, given in enumerate(flow.inputs):
            if given.readers and self.root.inside:
                item = Item(INPUT, number, around=self.root)
                entering.append(item)
                for reader in given.readers:
                    self._draw(item, self.seen(reader), None, given.spec)
        self.root.inside[:0] = entering
        if flow.outputs and self.root.inside:
            output = Item(OUTPUT, 0, around=self.root)
            self.root.inside.append(output)
            for step, spec in flow.outputs:
                self._draw(self.seen(step), output, step, spec)
        return list(self.found.values())

    def _draw(self, source: Item, target: Item, step: int | None, spec: TensorSpec) -> None:
        if source is target:
            return
        edge = self.found.get((source, target))
        if edge is None:
            edge = self.found[source, target] = Edge(source, target)
        edge.tensors[None if step is None else self._stand_in(step), spec] = None

    def seen(self, step: int) -> Item:
        """The step itself, or the closed module that hides it."""
        step = self._stand_in(step)
        if step in self.item_of_step:
            return self.item_of_step[step]
        place = self.graph.place_of[step]
        while place not in self.item_of_place:
            place = self.graph.places[place].parent
        return self.item_of_place[place]

    def _stand_in(self, step: int) -> int:
        """The step that is drawn for this one: in the first block of a run, in the first turn of a loop."""
        own = self.graph.places[self.graph.place_of[step]]
        drawn = self.graph.places[self.stand_ins[self.graph.place_of[step]]]
        return drawn.steps[bisect_left(own.steps, step) % own.period]

    def _is_drawn(self, source: int, target: int) -> bool:
        """Whether to draw it: only the first of equal blocks is drawn, and no data between the blocks of a run."""
        places, levels = self.graph.places, self.levels
        a, b = self.graph.place_of[source], self.graph.place_of[target]
        below_a, below_b = -1, -1
        while a != b:
            if levels[a] >= levels[b]:
                below_a, a = a, places[a].parent
            else:
                below_b, b = b, places[b].parent
        is_within_run = below_a >= 0 and below_b >= 0 and self.runs.first[below_a] == self.runs.first[below_b]
        return not is_within_run and self.stand_ins[a] == a
