"""Runs of equal blocks: places that follow each other, are numbered after one stem and are alike in all below them."""

from __future__ import annotations

from itertools import groupby

from torchgauge.report.folding import NUMBERED, run_name
from torchgauge.report.graph.places import Graph


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
            # A step between two blocks parts them: it would be lost or stand alone.
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
    """A number for each place; equal numbers stand for equal subtrees."""
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
