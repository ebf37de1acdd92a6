"""From a live `torch.export.ExportedProgram`."""

from __future__ import annotations

import operator
import re
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_unflatten

from torchgauge.errors import TargetError
from torchgauge.source.exported.model import ExportedModel
from torchgauge.source.exported.program import (
    CHECKS,
    Call,
    Graph,
    Input,
    ModuleCall,
    Program,
    Ref,
    last_line,
    run_higher_order,
)

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.export.graph_signature import ExportGraphSignature

_AGAIN = re.compile(r"@\d+")
_STRICT = re.compile(r"^L\['\w+'\]\.?")
_KEY = re.compile(r"\[['\"]?([^\]'\"]+)['\"]?\]")


def from_program(program: ExportedProgram) -> ExportedModel:
    signature, state = program.graph_signature, program.state_dict
    constants = {name: program.constants[target] for name, target in _targets(signature, "CONSTANT_TENSOR")}
    buffers = {
        name: (target, state[target] if target in state else program.constants[target])
        for name, target in _targets(signature, "BUFFER")
    }
    graph = _graph(program.graph_module)
    kinds = [spec.kind.name for spec in program.graph_signature.output_specs]
    wanted = [value for value, kind in zip(graph.outputs, kinds, strict=True) if kind == "USER_OUTPUT"]
    spec = program.call_spec.out_spec
    user_outputs = tree_unflatten(wanted, spec) if spec is not None else tuple(wanted)
    names = {spec.arg.name for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"}
    found = []
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in names:
            value = node.meta.get("val")
            if not isinstance(value, torch.Tensor):
                raise TargetError(
                    f"the exported program takes '{node.name}', which is not a tensor: export the model without it"
                )
            # A symbolic size has the value it had when the program was exported.
            shape = tuple(size if isinstance(size, int) else int(size.node.hint) for size in value.shape)
            found.append(Input(node.name, shape, value.dtype))
    # The class of the outermost module, from the first node that has one.
    stacks = (node.meta.get("nn_module_stack") or {} for node in program.graph.nodes)
    modules = (module for stack in stacks for module in stack.values())
    types = (_type_name(kind).rpartition(".")[2] for path, kind in modules if not module_call("", path, "").path)
    return ExportedModel(
        Program(
            graph=Graph(graph.inputs, graph.calls, user_outputs),
            inputs=tuple(found),
            parameters={name: (target, state[target]) for name, target in _targets(signature, "PARAMETER")},
            buffers=buffers,
            constants=constants,
            modules=tuple(entry.fqn for entry in program.module_call_graph),
            type=next(types, "ExportedProgram"),
        )
    )


def module_call(key: str, path: str, kind: str) -> ModuleCall:
    """From an entry of a node's module stack: in strict mode paths are expressions, and repeated calls are numbered."""
    plain = _KEY.sub(r".\1", _STRICT.sub("", path))
    return ModuleCall(key, _AGAIN.sub("", plain).lstrip("."), kind.rpartition(".")[2])


def _targets(signature: ExportGraphSignature, kind: str) -> list[tuple[str, str]]:
    return [(spec.arg.name, str(spec.target)) for spec in signature.input_specs if spec.kind.name == kind]


def _graph(module: torch.fx.GraphModule) -> Graph:
    inputs: list[str] = []
    calls: list[Call] = []
    outputs: Any = ()
    for node in module.graph.nodes:
        if node.op == "placeholder":
            inputs.append(node.name)
        elif node.op == "output":
            outputs = _value(node.args[0], module)
        elif node.op == "call_function" and node.target not in CHECKS:
            function = node.target
            assert not isinstance(function, str)  # only methods and attributes are named
            if isinstance(function, torch._ops.HigherOrderOperator):
                function = run_higher_order(function.name())
            # An item of the result of a higher-order op belongs to the module of that op; its own stack says inside it.
            source = node.args[0] if node.target is operator.getitem else node
            if not isinstance(source, torch.fx.Node) or not isinstance(source.target, torch._ops.HigherOrderOperator):
                source = node
            stack = source.meta.get("nn_module_stack") or {}
            places = [module_call(key, path, _type_name(kind)) for key, (path, kind) in stack.items()]
            kwargs = {name: _value(value, module) for name, value in node.kwargs.items()}
            args, inner = _value(tuple(node.args), module), tuple(place for place in places if place.path)
            calls.append(Call(function, args, kwargs, node.name, inner, last_line(node.meta.get("stack_trace"))))
    return Graph(tuple(inputs), tuple(calls), outputs)


def _type_name(kind: str | type) -> str:
    return kind if isinstance(kind, str) else kind.__qualname__


def _value(value: object, module: torch.fx.GraphModule) -> Any:
    if isinstance(value, torch.fx.Node):
        return _graph(getattr(module, str(value.target))) if value.op == "get_attr" else Ref(value.name)
    if isinstance(value, list | tuple):  # fx has its own list class
        items = [_value(item, module) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, dict):
        return {key: _value(item, module) for key, item in value.items()}
    return value
