"""The modules with parameters as a tree, and the tree as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchgauge.compat.torchinfo.layer_info import LayerInfo

# What stands before a node: below a branch that goes on, before a child, before the last child.
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
    """Each node with what stands before it; `max_depth` 0 is all of them."""
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
