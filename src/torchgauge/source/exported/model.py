"""An exported program as a model with the modules it was exported from: every call of a module is a call here too."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from torchgauge.nested import find_all, match_up
from torchgauge.source.candidate import Candidate, make_tensor
from torchgauge.source.exported.program import Body, Call, Graph, Program, names_in, resolve


class Stage(nn.Module):
    """A module of the exported model; `original_name` is the name of its class."""

    def __init__(self, original_name: str, engine: Engine) -> None:
        super().__init__()
        self.original_name = original_name
        self.engine = engine

    def forward(self, *args: object) -> Any:
        return self.engine.run_next(args)


class Engine:
    """Runs segments, each inside a call of its stage."""

    def __init__(self, program: Program) -> None:
        self.stages: dict[str, Stage] = {}
        self._homes = {name: place for name, (place, _) in (program.parameters | program.buffers).items()}
        self._constants = program.constants
        self._next: Segment | None = None
        self._bodies: dict[int, Segment] = {}  # by the id of their graph, which the program keeps
        # Called with the line of code of each node before it runs.
        self.on_line: Callable[[str | None], None] | None = None

    def run(self, segment: Segment, args: tuple[object, ...]) -> dict[str, object]:
        values = _Values(dict(zip(segment.inputs, args, strict=True)), self.tensor)
        for step, dead in zip(segment.steps, segment.dead, strict=True):
            if isinstance(step, Call):
                if self.on_line is not None:
                    self.on_line(step.source)
                given = [self._body(arg, step) if isinstance(arg, Graph) else resolve(arg, values) for arg in step.args]
                result = step.function(*given, **resolve(step.kwargs, values))
                values.update(match_up(step.outputs, result))
                del given
            else:
                self._next = step
                result = self.stages[step.path](*(values[name] for name in step.inputs))
                values.update(match_up(step.outputs, (result,) if len(step.outputs) == 1 else result))
            result = None
            for name in dead:
                values.pop(name, None)
        return values

    def _body(self, graph: Graph, call: Call) -> Body:
        """A graph that is given to a higher-order op, as a function."""
        key = id(graph)
        if key not in self._bodies:
            self._bodies[key] = segment_graph(graph, depth=len(call.places))
        segment = self._bodies[key]

        def run(*args: object) -> tuple[object, ...]:
            outputs = resolve(graph.outputs, self.run(segment, args))
            return tuple(outputs) if isinstance(outputs, list | tuple) else (outputs,)

        return Body(run)

    def run_next(self, args: tuple[object, ...]) -> Any:
        segment, self._next = self._next, None
        if segment is None:
            raise RuntimeError("a part of an exported program cannot be called by itself")
        values = self.run(segment, args)
        outputs = tuple(values[name] for name in segment.outputs)
        return outputs[0] if len(outputs) == 1 else outputs

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor of the model, as its module holds it at this moment."""
        if name in self._constants:
            return self._constants[name]
        path, _, leaf = self._homes[name].rpartition(".")
        stage = self.stages[path]
        held = stage._parameters[leaf] if leaf in stage._parameters else stage._buffers[leaf]
        assert held is not None
        return held


class _Values(dict[str, object]):
    """The values of a segment; the model's own tensors are looked up when they are read."""

    def __init__(self, given: dict[str, object], held: Callable[[str], torch.Tensor]) -> None:
        super().__init__(given)
        self._held = held

    def __missing__(self, name: str) -> torch.Tensor:
        return self._held(name)


class ExportedModel(Stage):
    """The root: takes the inputs of the program in its order, or by name."""

    def __init__(self, program: Program) -> None:
        engine = Engine(program)
        super().__init__(program.type, engine)
        self.program = program
        self.inputs = program.inputs
        self._outputs = program.graph.outputs
        held = frozenset((*program.parameters, *program.buffers, *program.constants))
        self._whole = segment_graph(program.graph, held)
        # Make the tree of modules and give them their tensors; a module of two names is one module.
        types = {place.path: place.type for call in program.graph.calls for place in call.places}
        tensors = [(name, tensor, False) for name, tensor in program.parameters.values()]
        tensors += [(name, tensor, True) for name, tensor in program.buffers.values()]
        paths = dict.fromkeys((*program.modules, *types, *(name.rpartition(".")[0] for name, _, _ in tensors)))
        self.engine.stages[""] = self
        for path in paths:
            _grow(self, path, types)
        for name, tensor, is_buffer in tensors:
            path, _, leaf = name.rpartition(".")
            stage = self.engine.stages[path]
            if is_buffer:
                stage.register_buffer(leaf, tensor)
            else:
                parameter = tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor, tensor.requires_grad)
                stage.register_parameter(leaf, parameter)
        # Stages without submodules that hold the same tensors were one module with several names.
        first: dict[tuple[tuple[str, int], ...], Stage] = {}
        for path, stage in list(self.engine.stages.items()):
            own = tuple((name, id(tensor)) for name, tensor in (*stage.named_parameters(), *stage.named_buffers()))
            twin = stage if not path or stage._modules or not own else first.setdefault(own, stage)
            if twin is not stage:
                above, _, name = path.rpartition(".")
                self.engine.stages[above]._modules[name] = twin
                self.engine.stages[path] = twin
        names = [inspect.Parameter(item.name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for item in program.inputs]

        def forward(*args: object, **kwargs: object) -> Any:
            return self._run(*args, **kwargs)

        forward.__signature__ = inspect.Signature(names)  # type: ignore[attr-defined]
        self.__dict__["forward"] = forward

    def candidates(self, batch: int | None = None) -> list[Candidate]:
        """The inputs that the program was exported with. `batch` replaces the first dimension of every input that has
        the batch size of the export there."""
        old = next((item.shape[0] for item in self.inputs if item.shape), None)
        shapes = [
            (batch, *item.shape[1:]) if batch and item.shape and item.shape[0] == old else item.shape
            for item in self.inputs
        ]
        tensors = tuple(make_tensor(shape, item.dtype) for shape, item in zip(shapes, self.inputs, strict=True))
        reason = "the signature of the export" + (f", with a batch of {batch}" if batch else "")
        return [Candidate(tensors, {}, reason)]

    def _run(self, *args: object, **kwargs: object) -> Any:
        given: list[object] = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
        given += [kwargs[item.name] for item in self.inputs[len(given) :] if item.name in kwargs]
        if len(given) != len(self.inputs):
            raise TypeError(f"the exported program takes {len(self.inputs)} tensors, {len(given)} were given")
        return resolve(self._outputs, self.engine.run(self._whole, tuple(given)))


def _grow(root: ExportedModel, path: str, types: dict[str, str]) -> Stage:
    stages = root.engine.stages
    if path not in stages:
        above, _, name = path.rpartition(".")
        parent = _grow(root, above, types)
        stages[path] = Stage(types.get(path, "Module"), root.engine)
        parent.add_module(name, stages[path])
    return stages[path]


@dataclass(frozen=True, slots=True)
class Segment:
    """One call of a module: the values it reads from outside, its nodes and inner calls, the values that others read.

    `dead` are the names, for each step, that nothing reads after it.
    """

    path: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    steps: tuple[Call | Segment, ...]
    dead: tuple[tuple[str, ...], ...]


def segment_graph(graph: Graph, held: frozenset[str] = frozenset(), depth: int = 0) -> Segment:
    """The whole graph as one call; `held` are the names of the model's own tensors, `depth` is the number of modules
    around the node that takes this graph as an argument."""
    return _segment("", list(graph.calls), depth, held, frozenset(names_in(graph.outputs)), keep_order=graph.inputs)


def _segment(
    path: str,
    calls: list[Call],
    depth: int,
    held: frozenset[str],
    wanted: frozenset[str],
    keep_order: tuple[str, ...] | None = None,
) -> Segment:
    made = [name for call in calls for name in find_all(call.outputs, str)]
    used = list(dict.fromkeys(name for call in calls for name in _reads(call)))
    own = {*made, *held}
    inputs = tuple(name for name in used if name not in own)
    keys = (call.places[depth].key if len(call.places) > depth else None for call in calls)
    groups = [(key, list(group)) for key, group in groupby(calls, lambda _: next(keys))]
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
        read = step.inputs if isinstance(step, Segment) else _reads(step)
        touched = {*read, *(step.outputs if isinstance(step, Segment) else find_all(step.outputs, str))}
        dead.append(tuple(touched - alive))
        alive |= touched
    return Segment(
        path,
        inputs if keep_order is None else tuple(name for name in keep_order if name not in held),
        tuple(name for name in made if name in wanted),
        tuple(reversed(steps)),
        tuple(reversed(dead)),
    )


def _reads(call: Call) -> list[str]:
    return [*names_in(call.args), *names_in(call.kwargs)]
