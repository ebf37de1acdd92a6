"""Modules at their places in the run: a module that a block calls three times has three places in it.

A place holds its own steps (those of no module below it) and the places below it. Lists of modules are never called:
what they hold stands in the module around them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torchgauge.report.graph.flow import Flow, trace_flow
from torchgauge.tree import Node
from torchgauge.view import View

_UNCALLED = ("ModuleList", "ModuleDict")
# More calls than this are a loop over time or layers: one place that the data come back to.
MOST_CALLS = 8


@dataclass(slots=True)
class Place:
    """`row` is that of the module; `call` of `calls` tells places of the same module apart. `first` is the first step
    at or below the place, `name` the path below the place around it. A place in a loop is passed `turns` times: of its
    steps the first `period` are drawn, each for those that repeat it."""

    row: int
    name: str
    parent: int
    call: int = 0
    calls: int = 1
    first: int = 0
    turns: int = 1
    period: int = 0
    steps: list[int] = field(default_factory=list)
    children: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Graph:
    """`nodes` are the modules by row; places come in preorder, so that those below one follow it."""

    nodes: list[Node]
    flow: Flow
    places: list[Place]
    place_of: list[int]

    def items(self, place: int) -> list[tuple[int, bool]]:
        """What stands directly in a place, in the order of the run: places (True) and steps."""
        below, own = self.places[place].children, self.places[place].steps[: self.places[place].period]
        pairs = [(self.places[child].first, child, True) for child in below] + [(step, step, False) for step in own]
        return [(number, is_place) for _, number, is_place in sorted(pairs)]


def build_graph(view: View) -> Graph:
    nodes, flow = list(view.tree.walk()), trace_flow(view.capture)
    growing = _Growing(nodes, flow)
    if flow.steps:
        growing.grow([0], list(range(len(flow.steps))))
    else:
        growing.grow_from_names(0, -1)
    return Graph(nodes, flow, growing.places, growing.place_of)


class _Growing:
    """`chains` are, by row, the rows of the modules around it, from the root on, without lists of modules."""

    def __init__(self, nodes: list[Node], flow: Flow) -> None:
        self.nodes = nodes
        self.rows = {node.path: row for row, node in enumerate(nodes)}
        self.chains = _chains(nodes, self.rows)
        self.owners = [self._owner(op.module) for op in flow.steps]
        self.ops = [op.op for op in flow.steps]
        self.places: list[Place] = []
        self.place_of = [0] * len(flow.steps)

    def _owner(self, path: str) -> int:
        """The row at the path, or the closest above it: a wrapper that was stripped leaves no node."""
        while path not in self.rows:
            path = path.rpartition(".")[0]
        return self.rows[path]

    def grow(self, chain: Sequence[int], steps: list[int], parent: int = -1, call: int = 0, calls: int = 1) -> int:
        number, place = len(self.places), Place(chain[-1], self._name(chain), parent, call, calls, steps[0])
        self.places.append(place)
        visits = self._visits(place, len(chain), steps)
        place.turns = self._turns(place)
        place.period = self._period(place)
        for step in place.steps:
            self.place_of[step] = number
        for row, turn, every, inside in sorted(self._parts(place, visits), key=lambda part: part[3]):
            place.children.append(self.grow((*chain, row), inside, number, turn, every))
        return number

    def _parts(self, place: Place, visits: dict[int, list[list[int]]]) -> Iterator[tuple[int, int, int, list[int]]]:
        """The places below: row, call, calls and steps."""
        for row, parted in visits.items():
            times = self._times(row, place.row)
            every = times if times <= MOST_CALLS and len(parted) % times == 0 else 1
            for turn in range(every):
                yield row, turn, every, [step for visit in parted[turn::every] for step in visit]

    def _visits(self, place: Place, depth: int, steps: list[int]) -> dict[int, list[list[int]]]:
        """By module directly below: its steps, parted where another one ran in between. The rest are the place's."""
        visits: dict[int, list[list[int]]] = {}
        last: int | None = None
        for step in steps:
            chain = self.chains[self.owners[step]]
            row = chain[depth] if len(chain) > depth else None
            if row is None:
                place.steps.append(step)
            elif row == last:
                visits[row][-1].append(step)
            else:
                visits.setdefault(row, []).append([step])
            last = row
        return visits

    def _times(self, row: int, around: int) -> int:
        """Calls of a module for each call of the one around it; 1 where that is no whole number."""
        times, rest = divmod(self.nodes[row].record.calls, max(self.nodes[around].record.calls, 1))
        return times if times and not rest else 1

    def _turns(self, place: Place) -> int:
        if place.parent < 0:
            return 1
        around = self.places[place.parent]
        return around.turns * self._times(place.row, around.row) // place.calls

    def _period(self, place: Place) -> int:
        """After how many of its own steps they repeat; all of them where the turns differ."""
        count = len(place.steps)
        period, rest = divmod(count, place.turns)
        ops = [self.ops[step] for step in place.steps]
        return period if not rest and ops == ops[:period] * place.turns else count

    def grow_from_names(self, row: int, parent: int) -> int:
        """Without ops: the hierarchy of the modules that hold something."""
        number, place = len(self.places), Place(row, self._name(self.chains[row]), parent)
        self.places.append(place)
        place.children = [self.grow_from_names(child, number) for child in self._below(self.nodes[row])]
        return number

    def _below(self, node: Node) -> list[int]:
        found: list[int] = []
        for child in node.children:
            if child.record.type in _UNCALLED:
                found += self._below(child)
            elif child.record.params or child.children:
                found.append(self.rows[child.path])
        return found

    def _name(self, chain: Sequence[int]) -> str:
        path = self.nodes[chain[-1]].path
        around = self.nodes[chain[-2]].path if len(chain) > 1 else ""
        return path[len(around) + 1 :] if around else path


def _chains(nodes: list[Node], rows: dict[str, int]) -> list[tuple[int, ...]]:
    chains: list[tuple[int, ...]] = [()] * len(nodes)

    def descend(node: Node, around: tuple[int, ...]) -> None:
        row = rows[node.path]
        is_list = node.record.type in _UNCALLED and not node.record.calls and around
        chains[row] = around if is_list else (*around, row)
        for child in node.children:
            descend(child, chains[row])

    descend(nodes[0], ())
    return chains
