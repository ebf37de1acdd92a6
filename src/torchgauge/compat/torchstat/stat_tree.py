"""The tree of a model's leaves: an inner node is the sum of its children."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class _Summed:
    """A node's own value plus its children's."""

    def __set_name__(self, owner: type[StatNode], name: str) -> None:
        self.name, self.own = name, f"_{name}"

    def __get__(self, node: StatNode, owner: type[StatNode]) -> Any:
        return getattr(node, self.own, 0) + sum(getattr(child, self.name) for child in node.children)

    def __set__(self, node: StatNode, value: object) -> None:
        setattr(node, self.own, value)


class StatNode:
    """A module's row: its name in full, and its figures. `Memory` is (read, written) in bytes."""

    parameter_quantity = _Summed()
    inference_memory = _Summed()
    MAdd = _Summed()
    Flops = _Summed()
    duration = _Summed()
    _read = _Summed()
    _written = _Summed()

    def __init__(self, name: str = "", parent: StatNode | None = None) -> None:
        self.name = name
        self.parent = parent
        self.granularity = 0
        self.children: list[StatNode] = []
        self._input_shape: tuple[int, ...] = ()
        self._output_shape: tuple[int, ...] = ()

    @property
    def depth(self) -> int:
        """The height of the node: 1 for a leaf."""
        return 1 + max((child.depth for child in self.children), default=0)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.children[0].input_shape if self.children else self._input_shape

    @input_shape.setter
    def input_shape(self, shape: tuple[int, ...]) -> None:
        self._input_shape = tuple(shape)

    @property
    def output_shape(self) -> tuple[int, ...]:
        return self.children[-1].output_shape if self.children else self._output_shape

    @output_shape.setter
    def output_shape(self, shape: tuple[int, ...]) -> None:
        self._output_shape = tuple(shape)

    @property
    def Memory(self) -> tuple[int, int]:  # noqa: N802 - torchstat's name
        return self._read, self._written

    @Memory.setter
    def Memory(self, traffic: tuple[int, int]) -> None:  # noqa: N802 - torchstat's name
        self._read, self._written = traffic

    def find_child_index(self, child_name: str) -> int:
        """-1 where there is none."""
        return next((index for index, child in enumerate(self.children) if child.name == child_name), -1)

    def add_child(self, node: StatNode) -> None:
        if not isinstance(node, StatNode):
            raise AssertionError(f"a child is a StatNode, not a {type(node).__name__}")
        if self.find_child_index(node.name) == -1:
            self.children.append(node)

    def walk(self) -> Iterator[StatNode]:
        """This node and all below it, preorder."""
        yield self
        for child in self.children:
            yield from child.walk()


class StatTree:
    def __init__(self, root_node: StatNode) -> None:
        if not isinstance(root_node, StatNode):
            raise AssertionError(f"the root is a StatNode, not a {type(root_node).__name__}")
        self.root_node = root_node

    def get_same_level_max_node_depth(self, query_node: StatNode) -> int:
        """The largest height among the node and its siblings; 0 for the root."""
        if query_node.parent is None:
            return 0
        return max(child.depth for child in query_node.parent.children)

    def update_stat_nodes_granularity(self) -> None:
        """Give every node the largest height among itself and its siblings as its granularity."""
        for node in self.root_node.walk():
            node.granularity = self.get_same_level_max_node_depth(node)

    def get_collected_stat_nodes(self, query_granularity: int) -> list[StatNode]:
        """The rows of a granularity: nodes of that height, and lower siblings of a node that is at least as high."""
        self.update_stat_nodes_granularity()
        collected = []
        for node in self.root_node.walk():
            height = node.depth
            if height == query_granularity or (height < query_granularity <= node.granularity):
                collected.append(node)
        return collected
