"""Match the modules of two models: by path, then by type, structure and position.

Within a pair of modules children pair by name, then equal subtrees in their order, then the same type at the same
place where their forms have something in common. Equal subtrees that are left pair across levels where a level was
added or removed (a wrapper); their former siblings follow them. Models of which no layer is found again are unrelated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from math import sqrt

from torchgauge.facts import Capture, Node, Row, TensorSpec, View

Own = dict[str, TensorSpec]

# Two draws of n values from one distribution have means that differ by about the standard error, std / sqrt(n), and
# norms by about norm / sqrt(2n). The same values, rounded to another type, differ by its rounding error (2^-9 for
# bfloat16) of that. At a 32nd, chance gives equal means and norms about once in a thousand.
_OF_STANDARD_ERROR = 1 / 32

# Classes that say nothing about a model; without code the class is unknown.
_CONTAINERS = ("", "Sequential", "ModuleList", "ModuleDict")


@dataclass(slots=True)
class Matching:
    """`partner` is by the path in the first model; `removed` and `added` are in preorder. Of unrelated models only the
    roots are partners."""

    partner: dict[str, Node] = field(default_factory=dict)
    removed: list[Node] = field(default_factory=list)
    added: list[Node] = field(default_factory=list)
    is_unrelated: bool = False


def own_tensors(capture: Capture) -> dict[str, Own]:
    """The parameters and buffers that each module holds itself, by path; tied ones under each of their names."""
    own: dict[str, Own] = {}
    for param in capture.params:
        for full in (param.name, *param.aliases):
            path, _, name = full.rpartition(".")
            own.setdefault(path, {})[name] = param.spec
    return own


def name_in_model(row: Row) -> str:
    """A stored tensor's name without what its file puts before those of the model."""
    module, leaf = row.get("module"), row.name.rpartition(".")[2]
    return row.name if module is None else f"{module}.{leaf}" if module else leaf


def _has_equal_values(mine: Row, theirs: Row) -> bool | None:
    """Whether two tensors hold the same values, judged by their statistics; None for constant tensors."""
    if list(mine.shape) != list(theirs.shape):
        return False
    if not mine.std or not theirs.std:
        return None if (mine.mean, mine.std) == (theirs.mean, theirs.std) else False
    error = _OF_STANDARD_ERROR / sqrt(mine.elements)
    norms = max(mine.l2, theirs.l2)
    return abs(mine.mean - theirs.mean) <= error * mine.std and abs(mine.l2 - theirs.l2) <= error * norms


class _Side:
    """One model: its nodes, their parents, and equal subtrees by number."""

    def __init__(self, view: View, numbers: dict[Hashable, int]) -> None:
        self.root = view.tree
        self.own = own_tensors(view.capture)
        # The rows of the tensors whose values were read, by module path.
        self.contents: dict[str, dict[str, Row]] = {}
        for row in view.weights:
            if row.role != "optimizer" and row.get("l2") is not None:
                path, _, name = name_in_model(row).rpartition(".")
                self.contents.setdefault(path, {})[name] = row
        self.nodes = list(view.tree.walk())
        self.parents = {child.path: node for node in self.nodes for child in node.children}
        self.kind: dict[str, int] = {}
        for node in reversed(self.nodes):
            children = tuple(self.kind[child.path] for child in node.children)
            tensors = tuple(sorted((name, spec.shape) for name, spec in self.own.get(node.path, {}).items()))
            key = (node.record.type, tensors, children)
            self.kind[node.path] = numbers.setdefault(key, len(numbers))


class Matcher:
    """Pairs the modules of two models that are one."""

    def __init__(self, base: View, other: View) -> None:
        numbers: dict[Hashable, int] = {}
        self.base, self.other = _Side(base, numbers), _Side(other, numbers)
        self.partner: dict[str, Node] = {}
        self.origin: dict[str, Node] = {}

    def match(self) -> Matching:
        self._pair(self.base.root, self.other.root)
        self._pair_moved()
        self._pair_followers()
        is_unrelated = not self._has_common()
        if is_unrelated:
            root, other = self.base.root, self.other.root
            self.partner, self.origin = {root.path: other}, {other.path: root}
        removed = [node for node in self.base.nodes if node.path not in self.partner]
        added = [node for node in self.other.nodes if node.path not in self.origin]
        return Matching(self.partner, removed, added, is_unrelated)

    def _has_common(self) -> bool:
        """Whether the models are of one class, a layer or a tensor is found again, or half of the modules of the
        smaller have their path and type in the other."""
        root, other = self.base.root.record, self.other.root.record
        if root.type == other.type and root.type not in _CONTAINERS:
            return True
        pairs = [(node, self.partner[node.path]) for node in self.base.nodes if node.path in self.partner]
        if any(node.record.params and self._is_alike(node, there) for node, there in pairs):
            return True
        alike = sum((a.path, a.record.type) == (b.path, b.record.type) for a, b in pairs if a.path)
        smaller = min(len(self.base.nodes), len(self.other.nodes)) - 1
        return smaller > 0 and 2 * alike >= smaller

    def _is_alike(self, node: Node, other: Node) -> bool:
        ours, theirs = self.base.own.get(node.path, {}), self.other.own.get(other.path, {})
        is_equal = self.base.kind[node.path] == self.other.kind[other.path]
        return is_equal or any(name in theirs and spec.shape == theirs[name].shape for name, spec in ours.items())

    def _has_common_form(self, node: Node, other: Node) -> bool:
        """Whether two modules of one type share a part: a child of the same name and type, or a size of a tensor."""
        if node.children or other.children:
            names = {(child.name, child.record.type) for child in node.children}
            return not names.isdisjoint((child.name, child.record.type) for child in other.children)
        ours, theirs = self.base.own.get(node.path, {}), self.other.own.get(other.path, {})
        if not ours and not theirs:
            return True
        return any(
            size == there
            for name, spec in ours.items() if name in theirs
            for size, there in zip(spec.shape, theirs[name].shape, strict=False)
        )  # fmt: skip

    def _pair(self, node: Node, other: Node) -> None:
        """The two are one, and so are those of their children that fit; without recursion, models may be deep."""
        waiting = [(node, other)]
        while waiting:
            mine, theirs = waiting.pop()
            self.partner[mine.path], self.origin[theirs.path] = theirs, mine
            waiting += self._children(mine, theirs)

    def _children(self, node: Node, other: Node) -> Iterator[tuple[Node, Node]]:
        mine, theirs = self._free(node.children, self.partner), self._free(other.children, self.origin)
        places = {id(child): place for nodes in (node.children, other.children) for place, child in enumerate(nodes)}
        kinds = {id(child): (side.kind[child.path],) for nodes, side in ((mine, self.base), (theirs, self.other))
                 for child in nodes}  # fmt: skip
        keys: tuple[Callable[[Node], Hashable], ...] = (
            lambda child: child.name,
            lambda child: kinds[id(child)],
            # If the class is unknown, the same place is not enough for a match.
            lambda child: (child.record.type, places[id(child)]) if child.record.type else id(child),
        )
        for number, key in enumerate(keys):
            waiting: dict[Hashable, list[Node]] = defaultdict(list)
            for child in theirs:
                waiting[key(child)].append(child)
            left = []
            for child in mine:
                fitting = waiting[key(child)]
                # A name alone makes two modules one; the other keys must agree with the values.
                match = next((there for there in fitting if number == 0 or self._may_be_one(child, there)), None)
                if number == len(keys) - 1 and match is not None and not self._has_common_form(child, match):
                    match = None  # order alone makes no layer the other under a new name
                if match is None:
                    left.append(child)
                else:
                    fitting.remove(match)
                    yield child, match
            unmatched = {id(there) for fitting in waiting.values() for there in fitting}
            mine, theirs = left, [child for child in theirs if id(child) in unmatched]

    def _may_be_one(self, node: Node, other: Node) -> bool:
        """Whether the values of two modules with different names allow them to be one. Unknown values do."""
        verdicts = []
        for mine, theirs in zip(node.walk(), other.walk(), strict=False):
            ours, others = self.base.contents.get(mine.path, {}), self.other.contents.get(theirs.path, {})
            verdicts += [_has_equal_values(row, others[name]) for name, row in ours.items() if name in others]
        informative = [verdict for verdict in verdicts if verdict is not None]
        if not informative:
            # Norms at their initial values, or values that were not read: the name decides.
            return not verdicts or node.name == other.name
        return 2 * sum(informative) > len(informative)

    def _free(self, nodes: Iterable[Node], taken: dict[str, Node]) -> list[Node]:
        return [node for node in nodes if node.path not in taken]

    def _pair_moved(self) -> None:
        """Equal subtrees where a level was added or removed. Only with parameters: one ReLU is like another."""
        waiting: dict[int, list[Node]] = defaultdict(list)
        for node in self.other.nodes:
            if node.path not in self.origin and node.record.params:
                waiting[self.other.kind[node.path]].append(node)
        for node in self.base.nodes:
            if node.path in self.partner or not node.record.params:
                continue
            parent = self.base.parents.get(node.path)
            fitting = waiting[self.base.kind[node.path]]
            for other in fitting:
                above = self.other.parents.get(other.path)
                is_known_level = (
                    parent is not None
                    and parent.path in self.partner
                    and above is not None
                    and above.path in self.origin
                )
                # A single layer must keep its name: norms look alike.
                may_move = other.path not in self.origin and (node.children or node.name == other.name)
                if may_move and not is_known_level and self._may_be_one(node, other):
                    fitting.remove(other)
                    self._pair(node, other)
                    break

    def _pair_followers(self) -> None:
        """Modules without parameters follow their siblings, if there is one of the same name and type."""
        for node in self.base.nodes:
            parent = self.base.parents.get(node.path)
            if node.path in self.partner or parent is None:
                continue
            # The modules that now hold the other children of its parent.
            partners = [self.partner[child.path] for child in parent.children if child.path in self.partner]
            homes = [self.other.parents.get(partner.path) for partner in partners]
            for place in {home.path: home for home in homes if home is not None}.values():
                fitting = self._free(place.children, self.origin)
                found = next((c for c in fitting if (c.name, c.record.type) == (node.name, node.record.type)), None)
                if found is not None:
                    self._pair(node, found)
                    break
