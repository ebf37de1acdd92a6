"""A model's layers as a tree: printed, as a DataFrame, as a graph in Graphviz's language, and as a picture where
Graphviz is not installed."""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydot
from torch import nn

from torchgauge.compat.torchinfo import summary
from torchgauge.compat.torchinfo.layer_info import LayerInfo

if TYPE_CHECKING:
    import pandas

# The prefix of a line: below a branch that continues, of a child, of the last child.
STYLES: dict[str, tuple[str, str, str]] = {
    "ansi": ("|   ", "|-- ", "`-- "),
    "ascii": ("|   ", "|-- ", "+-- "),
    "const": ("│   ", "├── ", "└── "),
    "const_bold": ("┃   ", "┣━━ ", "┗━━ "),
    "rounded": ("│   ", "├── ", "╰── "),
    "double": ("║   ", "╠══ ", "╚══ "),
}


@dataclass(slots=True)
class ModelNode:
    """A module; `path` is `.Root.child`, `attributes` are named as in the table."""

    path: str
    attributes: dict[str, Any]
    children: list[ModelNode] = field(default_factory=list)

    @property
    def name(self) -> str:
        return str(self.attributes["Name"])

    def walk(self) -> Iterator[ModelNode]:
        yield self
        for child in self.children:
            yield from child.walk()


def build_tree(layers: list[LayerInfo]) -> ModelNode:
    """One node per module with parameters: the first call gives the sizes, all calls together the MACs."""
    root = next(layer for layer in layers if layer.depth == 0)
    nodes = {_path(root): _node(root)}
    for layer in sorted(layers, key=lambda layer: layer.depth):
        path = _path(layer)
        if layer is root or not layer.num_params:
            continue
        if path in nodes:
            nodes[path].attributes["MACs"] += layer.macs
            continue
        nodes[path] = _node(layer)
        nodes[path.rpartition(".")[0]].children.append(nodes[path])
    return nodes[_path(root)]


def find_node(root: ModelNode, name_or_path: str) -> ModelNode:
    """The node of that name, or at that path (`.Root.child`, `child`); the whole tree for ''."""
    wanted = name_or_path.strip("./").replace("/", ".")
    if not wanted:
        return root
    by_path = [node for node in root.walk() if node.path.lstrip(".") in (wanted, f"{root.name}.{wanted}")]
    found = by_path or [node for node in root.walk() if node.name == wanted]
    if not found:
        raise ValueError(f"the tree has no node '{name_or_path}'")
    if len(found) > 1:
        raise ValueError(f"{len(found)} nodes are called '{name_or_path}': give the path, such as {found[0].path}")
    return found[0]


def tree_lines(root: ModelNode, style: tuple[str, str, str], max_depth: int = 0) -> Iterator[tuple[str, ModelNode]]:
    """Each node with the prefix of its line; `max_depth` 0 shows all."""
    yield "", root
    yield from _below(root, style, "", max_depth - 1)


def choose_style(style: str, custom: Sequence[str]) -> tuple[str, str, str]:
    if style != "custom":
        if style not in STYLES:
            raise ValueError(f"no style '{style}'; one of: {', '.join(STYLES)}, custom")
        return STYLES[style]
    if len(custom) != 3 or len({len(part) for part in custom}) != 1:
        raise ValueError("a custom style is three strings of equal length: a branch going on, a child, the last child")
    stem, child, last = custom
    return stem, child, last


def _below(
    node: ModelNode, style: tuple[str, str, str], before: str, depth_left: int
) -> Iterator[tuple[str, ModelNode]]:
    if depth_left == 0:
        return
    stem, child, last = style
    for branch in node.children:
        is_last = branch is node.children[-1]
        yield before + (last if is_last else child), branch
        yield from _below(branch, style, before + (" " * len(stem) if is_last else stem), depth_left - 1)


def _path(layer: LayerInfo) -> str:
    parts: list[str] = []
    above: LayerInfo | None = layer
    while above is not None:
        parts.insert(0, above.var_name)
        above = above.parent_info
    return "." + ".".join(parts)


def _node(layer: LayerInfo) -> ModelNode:
    attributes = {
        "Name": layer.var_name,
        "Input Size": layer.input_size,
        "Kernel Size": layer.kernel_size,
        "MACs": layer.macs,
        "Output Size": layer.output_size,
        "Parameters": layer.num_params,
        "Type": layer.class_name,
    }
    return ModelNode(_path(layer), attributes)


LETTER_PX, FONT_PX, PADDING_PX, ROW_PX, BOX_PX = 8, 13, 12, 80, 32


def tree_svg(root: ModelNode) -> str:
    centres: dict[str, tuple[float, float]] = {}
    width = _place(root, 0.0, 0, centres)
    height = max(y for _, y in centres.values()) + ROW_PX
    shapes = []
    for node in root.walk():
        x, y = centres[node.path]
        for child in node.children:
            cx, cy = centres[child.path]
            ends = f'x1="{x:.1f}" y1="{y + BOX_PX / 2}" x2="{cx:.1f}" y2="{cy - BOX_PX / 2}"'
            shapes.append(f'<line {ends} stroke="black"/>')
        oval = f'cx="{x:.1f}" cy="{y}" rx="{_box_width(node) / 2}" ry="{BOX_PX / 2}"'
        shapes.append(f'<ellipse {oval} fill="none" stroke="black"/>')
        shapes.append(f'<text x="{x:.1f}" y="{y + FONT_PX / 3:.1f}">{escape(node.name)}</text>')
    body = "\n".join(shapes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'font-family="sans-serif" font-size="{FONT_PX}" text-anchor="middle">\n{body}\n</svg>\n'
    )


def _place(node: ModelNode, left: float, depth: int, centres: dict[str, tuple[float, float]]) -> float:
    """Put a node and all below it to the right of `left`; returns the width they take."""
    own = _box_width(node) + PADDING_PX
    below = 0.0
    for child in node.children:
        below += _place(child, left + below, depth + 1, centres)
    width = max(own, below)
    centres[node.path] = (left + (below or own) / 2, ROW_PX / 2 + depth * ROW_PX)
    return width


def _box_width(node: ModelNode) -> int:
    return max(len(node.name) * LETTER_PX + 2 * PADDING_PX, 2 * BOX_PX)


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

    def write_svg(self, path: str | Path, prog: str | None = None, encoding: str | None = None) -> bool:
        if prog or shutil.which("dot"):
            return bool(self.write(str(path), prog=prog, format="svg", encoding=encoding))
        Path(path).write_text(tree_svg(self.tree), encoding="utf-8")
        return True


def model_graph(root: ModelNode, look: Look, node_attr: str = "", edge_attr: str = "") -> ModelGraph:
    """A node is called by its name and a number among those of that name, as in the original: `conv0`, `conv1`."""
    background = {"bgcolor": look.bg_color} if look.bg_color else {}
    kind = "digraph" if look.directed else "graph"
    graph = ModelGraph(graph_type=kind, strict=True, rankdir=look.rankdir, **background)
    graph.tree = root
    names: dict[str, str] = {}  # by path
    taken: set[str] = set()
    for node in root.walk():
        # The eleventh "conv" and the first "conv1" are both conv10 in the original: here the second takes conv11.
        name = next(name for number in count() if (name := f"{node.name}{number}") not in taken)
        names[node.path] = name
        taken.add(name)
        settings, edge_settings = (node.attributes.get(attr) or {} for attr in (node_attr, edge_attr))
        graph.add_node(pydot.Node(_quoted(name), label=_quoted(node.name), **look.node() | settings))
        if node is not root:
            parent = names[node.path.rpartition(".")[0]]
            graph.add_edge(pydot.Edge(_quoted(parent), _quoted(name), **look.edge() | edge_settings))
    return graph


def _quoted(text: str) -> str:
    """Quoted where Graphviz needs it; pydot itself would misread a name with a colon."""
    if re.fullmatch(r"\w+", text, re.ASCII):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


ATTRIBUTES = ("Name", "Input Size", "Kernel Size", "MACs", "Output Size", "Parameters", "Type")


class TorchinfoWriter:
    """Several inputs are given as a tuple in `input_data`. Call `construct_model_tree` before looking at the tree."""

    def update_model(
        self,
        model: nn.Module | None = None,
        input_size: Sequence[object] | None = None,
        input_data: Any = None,
        batch_dim: int | None = None,
        cache_forward_pass: bool | None = None,
        verbose: int | None = None,
    ) -> None:
        """Take another model; its tree has yet to be constructed."""
        self.model = model
        self.input_size = input_size
        self.input_data = input_data
        self.batch_dim = batch_dim
        self.cache_forward_pass = cache_forward_pass
        self.verbose = verbose
        self._root: ModelNode | None = None

    __init__ = update_model

    def construct_model_tree(self) -> None:
        """Run the model once; the summary is printed unless `verbose` is 0."""
        if self.model is None:
            raise RuntimeError("no model: pass one to TorchinfoWriter or to update_model first")
        found = summary(
            self.model,
            input_size=self.input_size,
            input_data=self.input_data,
            batch_dim=self.batch_dim,
            cache_forward_pass=self.cache_forward_pass,
            verbose=self.verbose,
        )
        self._root = build_tree(found.summary_list)

    def show_model_tree(
        self,
        node_name_or_path: str = "",
        max_depth: int = 0,
        all_attrs: bool = False,
        attr_list: Sequence[str] = (),
        attr_omit_null: bool = False,
        attr_bracket: Sequence[str] = ("[", "]"),
        style: str = "const",
        custom_style: Sequence[str] = (),
    ) -> None:
        """Print the tree, or the part below a node; `attr_list` names the attributes shown behind each module."""
        if len(attr_bracket) != 2:
            raise ValueError(f"attr_bracket is an opening and a closing bracket, not {attr_bracket!r}")
        names = ATTRIBUTES[1:] if all_attrs else attr_list
        root = find_node(self._tree(), node_name_or_path)
        for before, node in tree_lines(root, choose_style(style, custom_style), max_depth):
            shown = {name: node.attributes.get(name) for name in names if name in node.attributes}
            text = ", ".join(
                f"{name}={value}" for name, value in shown.items() if not (attr_omit_null and value in (None, []))
            )
            opening, closing = attr_bracket
            print(f"{before}{node.name} {opening}{text}{closing}" if text else f"{before}{node.name}")

    def get_dataframe(self, strip_leading_dot: bool = False) -> pandas.DataFrame:
        """One row per module, by its path."""
        import pandas

        nodes = list(self._tree().walk())
        paths = [node.path.removeprefix(".") if strip_leading_dot else node.path for node in nodes]
        rows = [node.attributes for node in nodes]
        return pandas.DataFrame(rows, index=pandas.Index(paths, name="Path"), columns=list(ATTRIBUTES))

    def get_dot(
        self,
        directed: bool = True,
        rankdir: str = "TB",
        bg_color: str = "",
        node_color: str = "",
        node_shape: str = "",
        edge_color: str = "",
        node_attr: str = "",
        edge_attr: str = "",
    ) -> ModelGraph:
        """The tree as a pydot graph. `node_attr` and `edge_attr` name an attribute that holds a node's own settings."""
        if importlib.util.find_spec("pydot") is None:
            raise ImportError("a graph needs the package 'pydot': install it with `pip install torchgauge[compat]`")

        look = Look(directed, rankdir, bg_color, node_color, node_shape, edge_color)
        return model_graph(self._tree(), look, node_attr, edge_attr)

    def _tree(self) -> ModelNode:
        if self._root is None:
            raise RuntimeError("the tree has not been constructed: call construct_model_tree() first")
        return self._root
