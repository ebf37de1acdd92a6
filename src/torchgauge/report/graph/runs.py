"""Runs of equal blocks: places that follow each other, are numbered after one stem and are alike in all below them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from torchgauge.facts import Signature
from torchgauge.report.folding import NUMBERED, run_name
from torchgauge.report.graph.places import Graph


class Runs:
    """`first` maps each place to the first of its run, itself where it is in none; `members` the first to all."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.kinds = _Kinds(graph).kinds
        self.first = list(range(len(graph.places)))
        self.members: dict[int, list[int]] = {}
        for place in range(len(graph.places)):
            for run in self._runs_in(place):
                self.members[run[0]] = run
                for member in run:
                    self.first[member] = run[0]

    def _runs_in(self, place: int) -> Iterator[list[int]]:
        """A step between two blocks parts them: it would be lost or stand alone."""

        def likeness(indexed: tuple[int, tuple[int, bool]]) -> tuple[object, ...]:
            index, (number, is_place) = indexed
            match = NUMBERED.fullmatch(self.graph.places[number].name) if is_place else None
            return (match[1], self.kinds[number]) if match else (index,)

        for _, group in groupby(enumerate(self.graph.items(place)), likeness):
            run = [number for _, (number, _) in group]
            if len(run) > 1:
                yield run

    def name(self, place: int) -> str:
        members = self.members.get(place)
        return run_name([self.graph.places[member].name for member in members or [place]])

    def count(self, place: int) -> int:
        return len(self.members.get(place, (place,)))


class _Kinds:
    """A number for each place; equal numbers stand for equal subtrees."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.numbers: dict[tuple[object, ...], int] = {}
        self.signatures: dict[int, tuple[object, ...]] = {}
        self.kinds = [0] * len(graph.places)
        # Places come in preorder: those below one are numbered before it when going backwards.
        for place in reversed(range(len(graph.places))):
            self.kinds[place] = self.numbers.setdefault(self._appearance(place), len(self.numbers))

    def _appearance(self, place: int) -> tuple[object, ...]:
        at, steps = self.graph.places[place], self.graph.flow.steps
        record = self.graph.nodes[at.row].record
        inside = tuple(
            (self.graph.places[number].name, self.kinds[number])
            if is_place
            else self._signature(steps[number].signature)
            for number, is_place in self.graph.items(place)
        )
        return (record.type, record.params, record.trainable_params, record.param_bytes, at.call, at.calls, inside)

    def _signature(self, signature: Signature) -> tuple[object, ...]:
        # Equal calls share one signature: the specs of most are looked at once.
        if id(signature) not in self.signatures:
            self.signatures[id(signature)] = (signature.op, signature.inputs, signature.outputs)
        return self.signatures[id(signature)]
