"""The module tree: own figures, children, sums on demand. Views derive from it; it stores no facts itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from torchgauge.facts.capture import Capture
from torchgauge.facts.figures import FIGURES
from torchgauge.facts.module import ModuleRecord
from torchgauge.facts.op import OpRecord, Signature

_OF_CALL = tuple((figure.key, figure.of_call) for figure in FIGURES if figure.of_call is not None)
_ZEROS = dict.fromkeys((key for key, _ in _OF_CALL), 0)


class Sums(dict[str, int]):
    """The figures of a set of op calls that add up, by their keys in the table of figures: `sums.macs`."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(_ZEROS)

    def __getattr__(self, key: str) -> int:
        try:
            return self[key]
        except KeyError:
            raise AttributeError(f"'{key}' does not add up over ops; these do: {', '.join(self)}") from None

    @property
    def bytes_moved(self) -> int:
        return self["bytes_read"] + self["bytes_written"]

    def count(self, call: Signature) -> None:
        for key, of_call in _OF_CALL:
            self[key] += of_call(call)

    def add(self, other: Sums) -> None:
        for key, value in other.items():
            self[key] += value

    @classmethod
    def over(cls, ops: Iterable[OpRecord]) -> Sums:
        # Equal calls share a signature, whose figures are looked up once.
        signatures = [op.signature for op in ops]
        times, distinct = Counter(map(id, signatures)), {id(call): call for call in signatures}
        sums = cls()
        for key, of_call in _OF_CALL:
            sums[key] = sum([of_call(call) * times[number] for number, call in distinct.items()])
        return sums


class Node:
    """A module in the tree; `own` holds the ops that ran in it but in none of its children."""

    def __init__(self, record: ModuleRecord) -> None:
        self.record = record
        self.own = Sums()
        self.children: list[Node] = []
        self._total: Sums | None = None

    @property
    def path(self) -> str:
        return self.record.path

    @property
    def name(self) -> str:
        return self.record.path.rpartition(".")[2]

    @property
    def total(self) -> Sums:
        """Own figures plus the children's."""
        if self._total is None:
            # Children before their parents, without a call for each level: modules may be nested thousands deep.
            for node in reversed(list(self.walk())):
                node._total = Sums()
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
        expected = Sums.over(capture.ops)
        if self.total != expected:
            raise AssertionError(f"the tree sums to {self.total}, the ops to {expected}")


def build_tree(capture: Capture) -> Node:
    """The tree of a capture, with each op's figures in the module it ran in."""
    nodes = {record.path: Node(record) for record in capture.modules}
    for path, node in nodes.items():
        if node.record.parent is not None:
            _nearest(nodes, node.record.parent).children.append(nodes[path])
    # Equal calls share a signature, whose figures are worked out once.
    figures = {
        key: [of_call(call) for _, of_call in _OF_CALL]
        for key, call in {id(op.signature): op.signature for op in capture.ops}.items()
    }
    ran_in: dict[str, list[list[int]]] = {}
    for op in capture.ops:
        ran_in.setdefault(op.module, []).append(figures[id(op.signature)])
    for module, calls in ran_in.items():
        own = _nearest(nodes, module).own
        for name, column in zip(_ZEROS, zip(*calls, strict=True), strict=True):
            own[name] += sum(column)
    return nodes[""]


def _nearest(nodes: dict[str, Node], path: str) -> Node:
    """The node at `path`, or the closest one above it: a wrapper that was stripped leaves no node."""
    while path not in nodes:
        path = path.rpartition(".")[0]
    return nodes[path]
