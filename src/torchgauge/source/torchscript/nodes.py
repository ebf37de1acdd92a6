"""Every node of a script module's graphs, with the module it belongs to and the line it was made from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from torchgauge.source.torchscript.lowering import LINE, lower, module_types, nodes_of
from torchgauge.source.torchscript.scopes import Scopes, is_flat

_SOURCE = re.compile(r'File "(.*)", line (\d+)')
_PLAIN = (bool, int, float, str)
# Attributes of a node that are texts and numbers, by the name of their kind.
_READERS: dict[str, Callable[[torch._C.Node, str], object]] = {
    "s": lambda node, name: node.s(name),
    "i": lambda node, name: node.i(name),
    "f": lambda node, name: node.f(name),
}


@dataclass(frozen=True, slots=True)
class GraphNode:
    """`kind` is the op or the construct (`aten::conv2d`, `prim::If`), `source` is `file:line`; `attributes` are the
    node's own and those of its arguments that are constants."""

    kind: str
    module: str
    method: str
    source: str | None
    attributes: dict[str, object]


def graph_nodes(module: torch.jit.ScriptModule) -> list[GraphNode]:
    """The nodes of all methods of a script module and its parts; functions are inlined where they are called."""
    types = module_types(module._c)
    return [
        node
        for path, part in module.named_modules()
        for method in _script(part)._method_names()
        for node in _method_nodes(path, method, _script(part)._get_method(method).graph, types)
    ]


def source_line(node: torch._C.Node) -> str | None:
    """`file:line` of the code that a node was made from."""
    found = _SOURCE.search(str(node.s("range") if node.kind() == LINE else node.sourceRange()))
    return f"{found[1]}:{found[2]}" if found else None


def _script(module: Any) -> Any:
    return module._c


def _method_nodes(path: str, method: str, graph: torch._C.Graph, types: frozenset[str]) -> Iterator[GraphNode]:
    lowered = lower(graph, types)
    scopes = Scopes(lowered) if is_flat(graph) else None
    for node in nodes_of(lowered):
        if node.kind() not in ("prim::Constant", LINE):
            inner = scopes.of(node)[-1:] if scopes is not None else ()
            place = ".".join((*filter(None, (path,)), *inner))
            own = {
                name: _READERS[kind](node, name)
                for name in node.attributeNames()
                if (kind := node.kindOf(name)) in _READERS
            }
            yield GraphNode(node.kind(), place, method, source_line(node), own | dict(_constants(node)))


def _constants(node: torch._C.Node) -> Iterator[tuple[str, object]]:
    text = node.schema()
    if text.startswith("("):  # "(no schema)"
        return
    for argument, value in zip(torch._C.parse_schema(text).arguments, node.inputs(), strict=False):
        found = _constant(value)
        if found is not None:
            yield argument.name, found


def _constant(value: torch._C.Value) -> object:
    """A number or text, or a list of such; None for what is made while the graph runs."""
    node = value.node()
    if node.kind() == "prim::Constant" and value.type().kind() != "FunctionType":
        held = value.toIValue()
        return held if isinstance(held, _PLAIN) else None
    if node.kind() == "prim::ListConstruct":
        items = [_constant(item) for item in node.inputs()]
        return None if None in items else items
    return None
