"""The graph of a method with its functions inlined and the calls of its modules kept.

Functions and methods of plain script classes cannot be looked up from Python, so torch's own pass inlines them. The
calls of modules are hidden from that pass under a name it does not know: they are the hierarchy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

CALL = "torchgauge::CallModule"
# Stands before what a call of a function was replaced by, with the source range of the call.
LINE = "torchgauge::Line"
_MAX_CALL_DEPTH = 64  # functions that call functions; TorchScript has no recursion

Graph = torch._C.Graph
Node = torch._C.Node


def type_name(value: torch._C.Value) -> str:
    """The type in full, with the module of its class; the stubs of torch lack `str`."""
    return str(value.type().str())  # type: ignore[attr-defined]


def lower(graph: Graph, module_types: frozenset[str]) -> Graph:
    """A copy of the graph; `module_types` are the names of the classes whose methods are calls of modules."""
    lowered = graph.copy()
    for node in list(nodes_of(lowered)):
        if node.kind() == "prim::CallMethod" and type_name(next(node.inputs())) in module_types:
            call = lowered.create(CALL, list(node.inputs()), node.outputsSize())
            call.s_("name", node.s("name"))
            call.copyMetadata(node)
            call.insertBefore(node)
            for old, new in zip(node.outputs(), call.outputs(), strict=True):
                new.setType(old.type())
            node.replaceAllUsesWith(call)
            node.destroy()
    # One pass leaves the calls that a function of a loaded archive makes itself.
    for _ in range(_MAX_CALL_DEPTH):
        for node in [node for node in nodes_of(lowered) if node.kind() == "prim::CallFunction"]:
            mark = lowered.create(LINE, [], 0)
            mark.s_("range", str(node.sourceRange()))
            mark.insertBefore(node)
        torch._C._jit_pass_inline(lowered)
        if all(node.kind() != "prim::CallFunction" for node in nodes_of(lowered)):
            break
    return lowered


def module_types(script: Any) -> frozenset[str]:
    """The names of the classes of a script module and of everything inside it."""
    names = {script._type().str()}
    for child in submodules(script):
        names |= module_types(child)
    return frozenset(names)


def submodules(script: Any) -> list[Any]:
    return [script.getattr(name) for name, _ in torch._C.ModuleDict(script).items()]


def nodes_of(block: torch._C.Block | torch._C.Graph) -> Iterator[Node]:
    """All nodes of a graph or block, those of inner blocks after their own node."""
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from nodes_of(inner)
