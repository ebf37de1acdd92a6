"""The module tree: own figures, children, sums on demand. Views derive from it; it holds no facts of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torchgauge.facts.capture import Capture
from torchgauge.facts.module import ModuleRecord
from torchgauge.facts.op import UNCOUNTED, OpRecord


@dataclass(slots=True)
class Figures:
    """The additive figures of a set of op calls."""

    macs: int = 0
    flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    activation_bytes: int = 0
    ops: int = 0
    uncounted_ops: int = 0

    def count(self, op: OpRecord) -> None:
        cost = op.signature.cost
        self.macs += cost.macs
        self.flops += cost.flops
        self.bytes_read += cost.bytes_read
        self.bytes_written += cost.bytes_written
        self.activation_bytes += op.signature.activation_bytes
        self.ops += 1
        self.uncounted_ops += op.signature.status == UNCOUNTED

    def add(self, other: Figures) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Node:
    """A module in the tree; `own` holds the ops that ran in it but in none of its children."""

    def __init__(self, record: ModuleRecord) -> None:
        self.record = record
        self.own = Figures()
        self.children: list[Node] = []
        self._total: Figures | None = None

    @property
    def path(self) -> str:
        return self.record.path

    @property
    def name(self) -> str:
        return self.record.path.rpartition(".")[2]

    @property
    def total(self) -> Figures:
        """Own figures plus the children's."""
        if self._total is None:
            # Children before their parents, without a call for each level: modules may be nested thousands deep.
            for node in reversed(list(self.walk())):
                node._total = Figures()
                node._total.add(node.own)
                for child in node.children:
                    node._total.add(child.total)
        assert self._total is not None
        return self._total

    def walk(self) -> Iterator[Node]:
        """This node and all below it, preorder."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(reversed(node.children))

    def self_check(self, capture: Capture) -> None:
        """Raise if the root's figures are not the sum over the ops: a view that lost or doubled one is a bug."""
        expected = Figures()
        for op in capture.ops:
            expected.count(op)
        if self.total != expected:
            raise AssertionError(f"the tree sums to {self.total}, the ops to {expected}")


def build_tree(capture: Capture) -> Node:
    """The tree of a capture, with each op's figures in the module it ran in."""
    nodes = {record.path: Node(record) for record in capture.modules}
    for path, node in nodes.items():
        if node.record.parent is not None:
            _nearest(nodes, node.record.parent).children.append(nodes[path])
    for op in capture.ops:
        _nearest(nodes, op.module).own.count(op)
    return nodes[""]


def _nearest(nodes: dict[str, Node], path: str) -> Node:
    """The node at `path`, or the closest one above it: a wrapper that was stripped leaves no node of its own."""
    while path not in nodes:
        path = path.rpartition(".")[0]
    return nodes[path]
