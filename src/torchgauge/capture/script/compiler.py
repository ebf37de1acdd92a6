"""From a lowered graph to steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchgauge.capture.script import control
from torchgauge.capture.script.builtins import require_spelled_length
from torchgauge.capture.script.operators import operator_of
from torchgauge.capture.script.program import Block, Step, Unsupported, free_after_last_use, is_instance
from torchgauge.capture.script.stages import group_by_scope
from torchgauge.capture.source_lines import source_line as model_source_line
from torchgauge.source.torchscript.lowering import CALL, LINE, lower
from torchgauge.source.torchscript.nodes import source_line
from torchgauge.source.torchscript.scopes import ONEDNN_CONSTANT, Scopes, is_flat, onednn_constant


def compile_graph(graph: Any, module_types: frozenset[str]) -> Block:
    """The block of a method or function; raises `Unsupported` where a node is not known here."""
    lowered = lower(graph, module_types)
    scopes = Scopes(lowered) if is_flat(graph) else None
    block = _Compiler(module_types, scopes).block(lowered)
    free_after_last_use(block)
    if scopes is not None:
        group_by_scope(block)
    return block


class _Compiler:
    def __init__(self, module_types: frozenset[str], scopes: Scopes | None) -> None:
        self.module_types = module_types
        self.scopes = scopes
        # Where torch's own functions are inlined, the line of the call: that of the constant which names the function.
        self.line: str | None = None

    def block(self, block: Any) -> Block:
        return Block(
            parameters=tuple(value.unique() for value in block.inputs()),
            results=tuple(value.unique() for value in block.outputs()),
            steps=[step for node in block.nodes() if (step := self._step(node)) is not None],
        )

    def _step(self, node: Any) -> Step | None:
        written = source_line(node)
        if written is not None:
            file, _, number = written.rpartition(":")
            self.line = model_source_line(file, int(number)) or self.line
        line = self.line
        if node.kind() == LINE:
            return None
        inputs = tuple(value.unique() for value in node.inputs())
        outputs = tuple(value.unique() for value in node.outputs())
        kind = node.kind()
        if kind == "prim::Constant":
            if node.output().type().kind() == "FunctionType":  # what called it is inlined by now
                return None
            value = node.output().toIValue()
            if isinstance(value, torch.Tensor):
                return Step(control.held(value), (), outputs, takes_frame=True, is_constant=True)
            return Step(lambda: value, (), outputs, is_constant=True)
        if kind == ONEDNN_CONSTANT:
            return Step(control.held(onednn_constant(node)), (), outputs, takes_frame=True, is_constant=True)
        blocks = tuple(map(self.block, node.blocks()))
        step = Step(self._free(kind, node), inputs, outputs, blocks=blocks, source=line)
        step.scope = self.scopes.of(node) if self.scopes is not None else ()
        step.makes_tensors = any(value.type().kind() == "TensorType" for value in node.outputs())
        make = _WITH_FRAME.get(kind)
        if make is not None:
            step.run, step.takes_frame = make(node, blocks), True
        elif kind == "prim::fork":
            step.run, step.takes_frame = control.fork(compile_graph(node.g("Subgraph"), self.module_types)), True
        return step

    def _free(self, kind: str, node: Any) -> Callable[..., Any]:
        if kind in _WITH_FRAME or kind == "prim::fork":
            return _nothing
        make = _WITHOUT_FRAME.get(kind)
        return make(node) if make is not None else operator_of(node)


def _nothing() -> None:
    return None


def _unpack(node: Any) -> Callable[..., Any]:
    if node.outputsSize() == 1:
        return lambda items: items[0]
    return tuple


def _slice(node: Any) -> Callable[..., Any]:
    begin, end = node.i("beg"), node.i("end")
    return lambda items: items[begin:end]


def _isinstance(node: Any) -> Callable[..., Any]:
    types = node.tys("types")

    def run(value: Any) -> bool:
        require_spelled_length((value,))
        return is_instance(value, types)

    return run


def _python_op(node: Any) -> Callable[..., Any]:
    """A function left to Python (`torch.jit.ignore`): there only in a live model, whose own code it is."""
    if node.scalar_args():
        raise Unsupported("prim::PythonOp")
    return node.pyobj()


_WITHOUT_FRAME: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "prim::TupleUnpack": _unpack,
    "prim::ListUnpack": _unpack,
    "prim::TupleSlice": _slice,
    "prim::isinstance": _isinstance,
    "prim::RaiseException": lambda node: control.raise_exception,
    "prim::CreateObject": lambda node: control.creator(node.output().type().str()),
    "prim::Enter": lambda node: control.enterer(node.input().type().str()),
    "prim::Exit": lambda node: control.leave,
    "prim::PythonOp": _python_op,
    "prim::ModuleContainerIndex": lambda node: lambda module, key: module.getattr(str(key)),
    "aten::wait": lambda node: lambda done: done.value,
}
_WITH_FRAME: dict[str, Callable[[Any, tuple[Block, ...]], Callable[..., Any]]] = {
    CALL: lambda node, blocks: control.call_method(node.s("name")),
    "prim::CallMethod": lambda node, blocks: control.call_method(node.s("name")),
    "prim::GetAttr": lambda node, blocks: control.get_attribute(node.s("name")),
    "prim::SetAttr": lambda node, blocks: control.set_attribute(node.s("name")),
    "prim::If": lambda node, blocks: control.choose(*blocks),
    "prim::Loop": lambda node, blocks: control.loop(blocks[0]),
}
