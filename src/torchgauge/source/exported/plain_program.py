"""An exported program without its modules, to be run for real.

Its nodes are called one after the other on a list of values. No source text is generated, and no name of the program is
used: a value is an index of the list, and the tensors of the model are `p0`, `b1` ….
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import fx, nn
from torch.utils._pytree import tree_leaves

from torchgauge.nested import find_all, match_up
from torchgauge.source.exported.model import ExportedModel
from torchgauge.source.exported.program import Body, Graph, Ref, names_in

# A place in the list of values, or several.
Places = int | tuple["Places", ...]


@dataclass(frozen=True, slots=True)
class _Step:
    """One call: the places of its arguments and results in the list of values; results may be nested tuples of places.
    `dead` are the places that nothing reads after it."""

    function: Callable[..., Any]
    args: tuple[int, ...]
    kwargs: tuple[tuple[str, int], ...]
    results: Places
    dead: tuple[int, ...] = ()
    takes_bodies: bool = False


@dataclass(slots=True)
class _Routine:
    """A graph: `start` has its constants in their places, `held` the places of the model's own tensors."""

    start: list[object] = field(default_factory=list)
    inputs: tuple[int, ...] = ()
    held: dict[str, int] = field(default_factory=dict)
    steps: list[_Step] = field(default_factory=list)
    outputs: tuple[int, ...] = ()


class PlainProgram(nn.Module):
    """Takes the program's inputs in order or by name and returns its outputs as a tuple; no module is called."""

    def __init__(self, model: ExportedModel) -> None:
        super().__init__()
        self.original_name = model.original_name
        self._input_names = [item.name for item in model.inputs]
        program = model.program
        places: dict[str, str] = {}
        for name in (*program.parameters, *program.buffers, *program.constants):
            tensor = model.engine.tensor(name)
            places[name] = f"{'p' if isinstance(tensor, nn.Parameter) else 'b'}{len(places)}"
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(places[name], tensor)
            else:
                self.register_buffer(places[name], tensor)
        self._routine = _Writer(program.graph, places).routine

    def forward(self, *args: object, **kwargs: object) -> tuple[object, ...]:
        are_tensors = all(isinstance(arg, torch.Tensor) for arg in args)
        given: list[object] = [
            leaf for leaf in (args if are_tensors else tree_leaves(args)) if isinstance(leaf, torch.Tensor)
        ]
        given += [kwargs[name] for name in self._input_names[len(given) :] if name in kwargs]
        if len(given) != len(self._input_names):
            raise TypeError(f"the exported program takes {len(self._input_names)} tensors, {len(given)} were given")
        return self._run(self._routine, *given)

    def _run(self, routine: _Routine, *given: object) -> tuple[object, ...]:
        values = list(routine.start)
        for place, value in zip(routine.inputs, given, strict=True):
            values[place] = value
        for name, place in routine.held.items():
            values[place] = self._parameters[name] if name in self._parameters else self._buffers[name]
        del given
        for step in routine.steps:
            args = [values[place] for place in step.args]
            if step.takes_bodies:
                args = [Body(partial(self._run, arg)) if isinstance(arg, _Routine) else arg for arg in args]
            result = step.function(*args, **{name: values[place] for name, place in step.kwargs})
            if isinstance(step.results, int):
                values[step.results] = result
            else:
                for place, part in match_up(step.results, result):
                    values[place] = part
            del args, result
            for place in step.dead:
                values[place] = None
        return tuple(values[place] for place in routine.outputs)


class _Writer:
    """Assigns the values of a graph to places. `names` are the model's own tensors by their name in the program, which
    are not inputs of the whole graph; a body takes all of its inputs as arguments."""

    def __init__(self, graph: Graph, names: dict[str, str], *, is_body: bool = False) -> None:
        self.routine = _Routine()
        self._names = names
        self._places: dict[str, int] = {}
        self.routine.inputs = tuple(self._new(name) for name in graph.inputs if is_body or name not in names)
        for call in graph.calls:
            args = tuple(map(self._place, call.args))
            kwargs = tuple((name, self._place(value)) for name, value in call.kwargs.items())
            takes_bodies = any(isinstance(arg, Graph) for arg in call.args)
            step = _Step(call.function, args, kwargs, self._results(call.outputs), takes_bodies=takes_bodies)
            self.routine.steps.append(step)
        wanted = tree_leaves(graph.outputs, is_leaf=lambda value: isinstance(value, Ref))
        self.routine.outputs = tuple(map(self._place, wanted))
        # Find the values that nothing reads after each step, so that their memory is freed as soon as possible.
        routine = self.routine
        alive = {*routine.outputs, *routine.held.values()}
        steps: list[_Step] = []
        for step in reversed(routine.steps):
            touched = {*step.args, *(place for _, place in step.kwargs), *find_all(step.results, int)}
            made = {place for place in touched - alive if routine.start[place] is None}
            steps.append(_Step(step.function, step.args, step.kwargs, step.results, tuple(made), step.takes_bodies))
            alive |= touched
        self.routine.steps = steps[::-1]

    def _results(self, outputs: Any) -> Places:
        return self._new(outputs) if isinstance(outputs, str) else tuple(map(self._results, outputs))

    def _new(self, name: str) -> int:
        self._places[name] = self._constant(None)
        return self._places[name]

    def _constant(self, value: object) -> int:
        self.routine.start.append(value)
        return len(self.routine.start) - 1

    def _place(self, value: object) -> int:
        """The place of a value: of a name, of a list that an extra step makes, of a body, or of a constant."""
        if isinstance(value, Ref):
            if value.name not in self._places and value.name in self._names:
                self.routine.held[self._names[value.name]] = self._new(value.name)
            return self._places[value.name]
        if isinstance(value, Graph):
            return self._constant(_Writer(value, self._names, is_body=True).routine)
        if isinstance(value, list | tuple) and any(True for _ in names_in(value)):
            items, place = tuple(map(self._place, value)), self._constant(None)
            self.routine.steps.append(_Step(lambda *values: list(values), items, (), place))
            return place
        return self._constant(value)


def is_plain(module: object) -> bool:
    """Whether a program calls no modules, like ours and torch's own exports."""
    is_code = isinstance(module, fx.GraphModule) and all(node.op != "call_module" for node in module.graph.nodes)
    return is_code or isinstance(module, PlainProgram)
