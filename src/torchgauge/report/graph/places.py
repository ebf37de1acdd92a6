"""Modules at their places in the run: a module that a block calls three times has three places in it.

A place holds its own steps (those of no module below it) and the places below it. Lists of modules are never called:
their contents belong to the module around them. A run is equal blocks that follow each other. The data between steps
are links; views do no work, they are part of the way between two ops.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby

from torchgauge.facts import FREE, Capture, Node, OpRecord, TensorSpec, View, tensor_specs
from torchgauge.facts.module import NUMBERED
from torchgauge.registry import grouped
from torchgauge.report.folding import run_name

_UNCALLED = ("ModuleList", "ModuleDict")
# More calls than this are a loop over time or layers: one place that the data come back to.
MAX_CALLS = 8


@dataclass(slots=True)
class Place:
    """`row` is the module's; `call` of `calls` distinguishes places of the same module. `first` and `last` are the
    steps at or below the place that these are, `name` the path below the place around it. A place in a loop is passed
    `turns` times: of its steps the first `period` are drawn, each for those that repeat it."""

    row: int
    name: str
    parent: int
    call: int = 0
    calls: int = 1
    first: int = 0
    last: int = 0
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
        """The direct contents of a place, in the order of the run: places (True) and steps."""
        below, own = self.places[place].children, self.places[place].steps[: self.places[place].period]
        pairs = [(self.places[child].first, child, True) for child in below] + [(step, step, False) for step in own]
        return [(number, is_place) for _, number, is_place in sorted(pairs)]


def build_graph(view: View) -> Graph:
    nodes, flow = list(view.tree.walk()), trace_flow(view.capture)
    growing = _Growing(nodes, flow)
    if flow.steps:
        growing.grow(list(range(len(flow.steps))))
    else:
        growing.grow_from_names()
    return Graph(nodes, flow, growing.places, growing.place_of)


# A place to add: its row and steps, the place around it, which call of how many, the number of modules around it.
_Seed = tuple[int, list[int], int, int, int, int]


class _Growing:
    """`homes` are, by row, the row itself; for a list of modules, the row of the module that holds it. `around` are the
    homes of the modules around them, -1 for the model itself."""

    def __init__(self, nodes: list[Node], flow: Flow) -> None:
        self.nodes = nodes
        self.rows = {node.path: row for row, node in enumerate(nodes)}
        self.homes, self.around = list(range(len(nodes))), [-1] * len(nodes)
        for row, node in enumerate(nodes):  # preorder: what is around a module comes first
            if row > 0 and node.record.type in _UNCALLED and not node.record.calls:
                self.homes[row] = self.around[row]
            for child in node.children:
                self.around[self.rows[child.path]] = self.homes[row]
        self.chains: dict[int, list[int]] = {}
        self.owners: list[int] = []
        for op in flow.steps:
            # The closest row at or above its path: a wrapper that was stripped leaves no node.
            path = op.module
            while path not in self.rows:
                path = path.rpartition(".")[0]
            self.owners.append(self.homes[self.rows[path]])
        self.ops = [op.op for op in flow.steps]
        self.places: list[Place] = []
        self.place_of = [0] * len(flow.steps)

    def _chain(self, row: int) -> list[int]:
        """The rows of the modules around a row and its own, from the root on."""
        if row not in self.chains:
            chain = [row]
            while (above := self.around[chain[-1]]) >= 0:
                chain.append(above)
            self.chains[row] = chain[::-1]
        return self.chains[row]

    def grow(self, steps: list[int]) -> None:
        waiting: list[_Seed] = [(0, steps, -1, 0, 1, 0)]
        while waiting:
            row, steps, parent, call, calls, depth = waiting.pop()
            number = self._add(Place(row, self._name(row, parent), parent, call, calls, steps[0], steps[-1]))
            place = self.places[number]
            visits = self._visits(place, depth + 1, steps)
            if parent >= 0:
                around = self.places[parent]
                place.turns = around.turns * self._times(row, around.row) // calls
            # The number of its own steps after which they repeat; all of them if the turns differ.
            period, rest = divmod(len(place.steps), place.turns)
            ops = [self.ops[step] for step in place.steps]
            place.period = period if not rest and ops == ops[:period] * place.turns else len(ops)
            for step in place.steps:
                self.place_of[step] = number
            below: list[_Seed] = []
            for child, parted in visits.items():
                times = self._times(child, row)
                every = times if times <= MAX_CALLS and len(parted) % times == 0 else 1
                for turn in range(every):
                    inside = [step for visit in parted[turn::every] for step in visit]
                    below.append((child, inside, number, turn, every, depth + 1))
            waiting += sorted(below, key=lambda seed: seed[1], reverse=True)

    def _add(self, place: Place) -> int:
        """Places come in preorder: each is added to the one around it in the order of the run."""
        number = len(self.places)
        self.places.append(place)
        if place.parent >= 0:
            self.places[place.parent].children.append(number)
        return number

    def _visits(self, place: Place, depth: int, steps: list[int]) -> dict[int, list[list[int]]]:
        """The steps of each module directly below, split where another module ran in between. The remaining steps are
        the place's own."""
        visits: dict[int, list[list[int]]] = {}
        last: int | None = None
        for step in steps:
            chain = self._chain(self.owners[step])
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
        """Calls of a module for each call of the one around it; 1 where that is not a whole number."""
        times, rest = divmod(self.nodes[row].record.calls, max(self.nodes[around].record.calls, 1))
        return times if times and not rest else 1

    def grow_from_names(self) -> None:
        """If there are no ops, the places follow the hierarchy of the modules that hold something."""
        waiting = [(0, -1)]
        while waiting:
            row, parent = waiting.pop()
            number = self._add(Place(row, self._name(row, parent), parent))
            below: list[tuple[int, int]] = []
            children = list(self.nodes[row].children[::-1])
            while children:
                child = children.pop()
                if child.record.type in _UNCALLED:
                    children += reversed(child.children)
                elif child.record.params or child.children:
                    below.append((self.rows[child.path], number))
            waiting += reversed(below)

    def _name(self, row: int, parent: int) -> str:
        path = self.nodes[row].path
        around = self.nodes[self.places[parent].row].path if parent >= 0 else ""
        return path[len(around) + 1 :] if around else path


class Runs:
    """`first` maps each place to the first of its run, itself where it is in none; `members` the first to all."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        kinds = _kinds(graph)

        def likeness(indexed: tuple[int, tuple[int, bool]]) -> tuple[object, ...]:
            index, (number, is_place) = indexed
            match = NUMBERED.fullmatch(graph.places[number].name) if is_place else None
            return (match[1], kinds[number]) if match else (index,)

        self.first = list(range(len(graph.places)))
        self.members: dict[int, list[int]] = {}
        for place in range(len(graph.places)):
            # A step between two blocks separates them: folded together, they would hide it.
            for _, group in groupby(enumerate(graph.items(place)), likeness):
                run = [number for _, (number, _) in group]
                if len(run) > 1:
                    self.members[run[0]] = run
                    for member in run:
                        self.first[member] = run[0]

    def name(self, place: int) -> str:
        members = self.members.get(place)
        return run_name([self.graph.places[member].name for member in members or [place]])

    def count(self, place: int) -> int:
        return len(self.members.get(place, (place,)))


def _kinds(graph: Graph) -> list[int]:
    """A number for each place; equal subtrees have equal numbers."""
    numbers: dict[tuple[object, ...], int] = {}
    # Equal calls share one signature: the specs of most are looked at once.
    signatures: dict[int, tuple[object, ...]] = {}
    kinds = [0] * len(graph.places)
    # Places come in preorder: those below one are numbered before it when going backwards.
    for place in reversed(range(len(graph.places))):
        inside: list[tuple[object, ...]] = []
        for number, is_place in graph.items(place):
            if is_place:
                inside.append((graph.places[number].name, kinds[number]))
            else:
                call = graph.flow.steps[number].signature
                if id(call) not in signatures:
                    signatures[id(call)] = (call.op, call.inputs, call.outputs)
                inside.append(signatures[id(call)])
        at = graph.places[place]
        record = graph.nodes[at.row].record
        own = (record.type, record.params, record.trainable_params, record.param_bytes, at.call, at.calls)
        kinds[place] = numbers.setdefault((*own, tuple(inside)), len(numbers))
    return kinds


@dataclass(frozen=True, slots=True)
class Link:
    """A tensor on its way, as the op that reads it sees it. Ops are counted among the steps."""

    source: int
    target: int
    spec: TensorSpec


@dataclass(frozen=True, slots=True)
class ModelInput:
    """One tensor that the model is given, maybe under several names."""

    name: str
    spec: TensorSpec
    readers: tuple[int, ...]


@dataclass(slots=True)
class Flow:
    """The steps are the ops of the forward pass that are drawn: all but views and memory that is never read.

    `outputs` are the steps that make the model's results, with the tensors they make."""

    steps: list[OpRecord]
    links: list[Link] = field(default_factory=list)
    inputs: list[ModelInput] = field(default_factory=list)
    outputs: list[tuple[int, TensorSpec]] = field(default_factory=list)

    @property
    def is_known(self) -> bool:
        """Whether the file records which op reads which output."""
        return bool(self.links or self.inputs or self.outputs)


def trace_flow(capture: Capture) -> Flow:
    """Data flow is not guessed: files without it give the steps alone, or a graph without inputs."""
    forward = [op for op in capture.ops if op.phase == "forward"]
    read = {producer for op in forward for producer in op.producers}
    flow = Flow([op for op in forward if op.category != "view" and (op.status != FREE or op.index in read)])
    if any(op.producers for op in forward):
        _Tracing(capture, flow).trace(forward)
    return flow


@dataclass(frozen=True, slots=True)
class _Origin:
    """The step that made a tensor, or the number of the input; neither for anything else."""

    step: int | None = None
    given: int | None = None


class _Tracing:
    """The state of one walk over the ops. `behind` has the origin of the tensor that a view shows, for views that count
    as writing memory themselves."""

    def __init__(self, capture: Capture, flow: Flow) -> None:
        self.flow = flow
        self.step_of = {op.index: step for step, op in enumerate(flow.steps)}
        self.behind: dict[int, _Origin] = {}
        # The inputs that anything reads; those with the same readers are one tensor.
        self.tensors = list(grouped((given.readers, given) for given in capture.inputs if given.readers).values())
        self.given = {reader: n for n, names in enumerate(self.tensors) for reader in names[0].readers or ()}
        self.readers: list[list[int]] = [[] for _ in self.tensors]
        self.results = capture.run.results
        self.returned = list(tensor_specs(next(r for r in capture.modules if r.path == "").outputs))

    def trace(self, ops: Iterable[OpRecord]) -> None:
        for op in ops:
            if op.index in self.step_of:
                step = self.step_of[op.index]
                for place, spec in enumerate(op.signature.inputs):
                    origin = self._origin(op, place)
                    if origin.step is not None:
                        self.flow.links.append(Link(origin.step, step, spec))
                    elif origin.given is not None:
                        self.readers[origin.given].append(step)
            elif op.category == "view":
                self.behind[op.index] = self._origin(op, 0)
        for names, readers in zip(self.tensors, self.readers, strict=True):
            name = ", ".join(record.name for record in names)
            self.flow.inputs.append(ModelInput(name, names[0].spec, tuple(readers)))
        # An output is what the op wrote last: a result may be written in place or shown through a view.
        for index in self.results:
            made_by = self.step_of.get(index, self.behind.get(index, _Origin()).step)
            if made_by is not None and (made := self.flow.steps[made_by].signature.outputs):
                self.flow.outputs.append((made_by, made[0]))
        if not self.flow.outputs:
            # Older files: an output is a step whose result is never read and that is as large as something returned.
            read = {link.source for link in self.flow.links}
            wanted = {(spec.numel, spec.dtype) for spec in self.returned}
            for step, op in enumerate(self.flow.steps):
                for spec in op.signature.outputs[:1]:
                    if step not in read and (spec.numel, spec.dtype) in wanted:
                        self.flow.outputs.append((step, spec))

    def _origin(self, op: OpRecord, place: int) -> _Origin:
        """The origin of one of the inputs of an op."""
        producer = op.producers[place] if place < len(op.producers) else None
        if producer is None:
            return _Origin(given=self.given.get((op.index, place)))
        return self.behind.get(producer) or _Origin(self.step_of.get(producer))
