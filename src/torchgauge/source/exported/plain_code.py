"""An exported program as plain Python code: what it takes to run it, without the modules it came from."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from torchgauge.source.exported.model import ExportedModel
from torchgauge.source.exported.program import Call, Graph, Program, Ref


def plain_code(model: ExportedModel) -> fx.GraphModule | None:
    """Takes the program's inputs in their order, gives its outputs in a tuple; no module is called. None where the
    program has branches or loops: those are run node by node."""
    program = model.program
    if any(isinstance(arg, Graph) for call in program.graph.calls for arg in call.args):
        return None
    return fx.GraphModule(_held_tensors(model, program), _Writer(program).graph, model.original_name)


def _held_tensors(model: ExportedModel, program: Program) -> dict[str, Any]:
    """By the place of their attribute; constants get one of their own."""
    held = {place: model.engine.tensor(name) for name, (place, _) in (program.parameters | program.buffers).items()}
    return held | {_constant_place(name): tensor for name, tensor in program.constants.items()}


def _constant_place(name: str) -> str:
    return f"torchgauge_constant_{name}"


class _Writer:
    def __init__(self, program: Program) -> None:
        self.graph = fx.Graph()
        self._nodes: dict[str, fx.Node] = {item.name: self.graph.placeholder(item.name) for item in program.inputs}
        self._places = {name: place for name, (place, _) in (program.parameters | program.buffers).items()}
        self._places |= {name: _constant_place(name) for name in program.constants}
        for call in program.graph.calls:
            self._write(call)
        outputs = tree_leaves(program.graph.outputs, is_leaf=lambda value: isinstance(value, Ref))
        self.graph.output(tuple(self._value(output) for output in outputs))

    def _write(self, call: Call) -> None:
        args, kwargs = self._value(call.args), self._value(call.kwargs)
        self._name(call.outputs, self.graph.call_function(call.function, args, kwargs))

    def _name(self, outputs: Any, node: fx.Node) -> None:
        if isinstance(outputs, str):
            self._nodes[outputs] = node
            return
        for index, item in enumerate(outputs):
            if item:
                self._name(item, self.graph.call_function(operator.getitem, (node, index)))

    def _value(self, value: Any) -> Any:
        if isinstance(value, Ref):
            return self._node(value.name)
        if isinstance(value, list | tuple):
            return type(value)(self._value(item) for item in value)
        if isinstance(value, dict):
            return {key: self._value(item) for key, item in value.items()}
        return value

    def _node(self, name: str) -> fx.Node:
        if name not in self._nodes:
            self._nodes[name] = self.graph.get_attr(self._places[name])
        return self._nodes[name]


def is_plain(module: object) -> bool:
    """Code without calls of modules, as ours and that of torch's own exports."""
    return isinstance(module, fx.GraphModule) and all(node.op != "call_module" for node in module.graph.nodes)


def takes_tensors(model: ExportedModel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the arguments are the program's own inputs, one tensor each."""
    names = [item.name for item in model.inputs][len(args) :]
    given = [*args, *kwargs.values()]
    return all(isinstance(value, torch.Tensor) for value in given) and set(kwargs) == set(names)
