"""The tree as a graph in Graphviz's language, and as a picture where Graphviz is not installed."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydot

from torchgauge.compat.torch_profiling_utils.model_tree import ModelNode
from torchgauge.compat.torch_profiling_utils.tree_svg import tree_svg


@dataclass(frozen=True, slots=True)
class Look:
    directed: bool
    rankdir: str
    bg_color: str
    node_color: str
    node_shape: str
    edge_color: str

    def node(self) -> dict[str, str]:
        filled = {"style": "filled", "fillcolor": self.node_color} if self.node_color else {}
        return filled | ({"shape": self.node_shape} if self.node_shape else {})

    def edge(self) -> dict[str, str]:
        return {"color": self.edge_color} if self.edge_color else {}


class ModelGraph(pydot.Dot):
    """A pydot graph that knows its tree: `write_svg` draws it itself where the program `dot` is missing."""

    tree: ModelNode

    def write_svg(self, path: str | Path, prog: Any = None, encoding: str | None = None) -> bool:
        if prog or shutil.which("dot"):
            return bool(self.write(str(path), prog=prog, format="svg", encoding=encoding))
        Path(path).write_text(tree_svg(self.tree), encoding="utf-8")
        return True


def model_graph(root: ModelNode, look: Look, node_attr: str = "", edge_attr: str = "") -> ModelGraph:
    background = {"bgcolor": look.bg_color} if look.bg_color else {}
    graph = ModelGraph(graph_type="digraph" if look.directed else "graph", rankdir=look.rankdir, **background)
    graph.tree = root
    _add(graph, root, None, look, (node_attr, edge_attr))
    return graph


def _add(graph: ModelGraph, node: ModelNode, parent: ModelNode | None, look: Look, own: tuple[str, str]) -> None:
    settings, edge_settings = (node.attributes.get(name) or {} for name in own)
    graph.add_node(pydot.Node(_quoted(node.path), label=_quoted(node.name), **look.node() | settings))
    if parent is not None:
        graph.add_edge(pydot.Edge(_quoted(parent.path), _quoted(node.path), **look.edge() | edge_settings))
    for child in node.children:
        _add(graph, child, node, look, own)


def _quoted(text: str) -> str:
    # Else pydot leaves a number, or a name with a colon, to be misread.
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
