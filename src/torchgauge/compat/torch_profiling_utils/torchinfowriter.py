"""A model's layers as a tree: printed, as a DataFrame, as a graph."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from torchgauge.compat.torch_profiling_utils.model_tree import (
    ModelNode,
    build_tree,
    choose_style,
    find_node,
    tree_lines,
)
from torchgauge.compat.torchinfo import summary

if TYPE_CHECKING:
    import pandas

    from torchgauge.compat.torch_profiling_utils.dot import ModelGraph

ATTRIBUTES = ("Name", "Input Size", "Kernel Size", "MACs", "Output Size", "Parameters", "Type")


class TorchinfoWriter:
    """Several inputs are given as a tuple in `input_data`. Call `construct_model_tree` before looking at the tree."""

    def __init__(
        self,
        model: nn.Module | None = None,
        input_size: Sequence[Any] | None = None,
        input_data: Any = None,
        batch_dim: int | None = None,
        cache_forward_pass: bool | None = None,
        verbose: int | None = None,
    ) -> None:
        self.update_model(model, input_size, input_data, batch_dim, cache_forward_pass, verbose)

    def update_model(
        self,
        model: nn.Module | None = None,
        input_size: Sequence[Any] | None = None,
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

    def construct_model_tree(self) -> None:
        """Run the model once; the summary is printed unless `verbose` is 0."""
        if self.model is None:
            raise RuntimeError("there is no model yet: give one to TorchinfoWriter or to update_model")
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
        from torchgauge.compat.torch_profiling_utils.dot import Look, model_graph

        look = Look(directed, rankdir, bg_color, node_color, node_shape, edge_color)
        return model_graph(self._tree(), look, node_attr, edge_attr)

    def _tree(self) -> ModelNode:
        if self._root is None:
            raise RuntimeError("the tree has not been constructed: call construct_model_tree() first")
        return self._root
