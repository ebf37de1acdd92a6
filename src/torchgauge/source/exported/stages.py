"""The nodes of a graph grouped into the calls of modules they come from."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any

from torchgauge.source.exported.program import Call, Graph, names_in, names_out


@dataclass(frozen=True, slots=True)
class Segment:
    """One call of a module: what it takes from outside, its nodes and inner calls, what others use of it.

    `dead` holds for each step the names that nothing reads after it.
    """

    path: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    steps: tuple[Call | Segment, ...]
    dead: tuple[tuple[str, ...], ...]


def segment_graph(graph: Graph, held: frozenset[str] = frozenset(), depth: int = 0) -> Segment:
    """The whole graph as one call; `held` are the names of the model's own tensors, `depth` is the number of modules
    that a node with this graph for an argument stands in."""
    return _segment("", list(graph.calls), depth, held, frozenset(names_in(graph.outputs)), keep_order=graph.inputs)


def _segment(
    path: str,
    calls: list[Call],
    depth: int,
    held: frozenset[str],
    wanted: frozenset[str],
    keep_order: tuple[str, ...] | None = None,
) -> Segment:
    made = [name for call in calls for name in names_out(call.outputs)]
    used = list(dict.fromkeys(name for call in calls for name in _reads(call)))
    own = {*made, *held}
    inputs = tuple(name for name in used if name not in own)
    groups = [(key, list(group)) for key, group in groupby(calls, lambda call: _key(call, depth))]
    needed = set(wanted)
    steps: list[Call | Segment] = []
    for key, group in reversed(groups):
        if key is None:
            steps.extend(reversed(group))
        else:
            steps.append(_segment(group[0].places[depth].path, group, depth + 1, held, frozenset(needed)))
        needed |= {name for call in group for name in _reads(call)}
    alive = set(wanted)
    dead: list[tuple[str, ...]] = []
    for step in steps:
        touched = set(_touched(step))
        dead.append(tuple(touched - alive))
        alive |= touched
    return Segment(
        path,
        inputs if keep_order is None else tuple(name for name in keep_order if name not in held),
        tuple(name for name in made if name in wanted),
        tuple(reversed(steps)),
        tuple(reversed(dead)),
    )


def _key(call: Call, depth: int) -> str | None:
    return call.places[depth].key if len(call.places) > depth else None


def _touched(step: Call | Segment) -> list[str]:
    if isinstance(step, Segment):
        return [*step.inputs, *step.outputs]
    return [*_reads(step), *names_out(step.outputs)]


def _reads(call: Call) -> list[Any]:
    return [*names_in(call.args), *names_in(call.kwargs)]
