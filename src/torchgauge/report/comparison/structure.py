"""Changes of the structure: modules added, removed, renamed, or with another type, shape or precision. And the modules
of all sides in one tree, a row each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchgauge.facts import Node, Row, View
from torchgauge.facts.figures import MODULES, STATIC, Use, numbers_in
from torchgauge.report.comparison.matching import Matching, Own, own_tensors
from torchgauge.units import format_shape

ADDED, REMOVED, RENAMED, RETYPED, RESHAPED, RECAST = "added", "removed", "renamed", "retyped", "reshaped", "recast"
STATES = (ADDED, REMOVED, RENAMED, RETYPED, RESHAPED, RECAST)
SAME = "same"


@dataclass(frozen=True, slots=True)
class TensorChange:
    """A parameter or buffer of a module; None where a side has none of that name."""

    name: str
    base: str | None
    other: str | None


@dataclass(frozen=True, slots=True)
class ModuleChange:
    """Only the topmost module of an added, removed or renamed subtree is listed; the parameters of an added or removed
    one exclude those of modules below it that only moved."""

    state: str
    base_path: str | None
    other_path: str | None
    base_type: str | None
    other_type: str | None
    base_params: int | None
    other_params: int | None
    tensors: tuple[TensorChange, ...] = ()

    @property
    def path(self) -> str:
        return (self.other_path if self.base_path is None else self.base_path) or ""


@dataclass(frozen=True, slots=True)
class Structure:
    """`base_states` is by the path in the first model, `other_states` by the path of what is new in the other.
    Unrelated models have nothing in common, and no changes."""

    changes: tuple[ModuleChange, ...]
    base_states: dict[str, str]
    other_states: dict[str, str]
    unchanged: int
    is_unrelated: bool = False


def compare_structure(base: View, other: View, matching: Matching) -> Structure:
    own = own_tensors(base.capture), own_tensors(other.capture)
    changes: list[ModuleChange] = []
    states: dict[str, str] = {}
    for node in base.tree.walk():
        partner = matching.partner.get(node.path)
        found = [] if partner is None else list(_pair_changes(node, partner, matching, own))
        states[node.path] = REMOVED if partner is None else found[-1].state if found else SAME
        changes += found
    gone, come = _whole(matching.removed, base), _whole(matching.added, other)
    changes += [ModuleChange(REMOVED, n.path, None, n.record.type, None, params, None) for n, params in gone]
    changes += [ModuleChange(ADDED, None, n.path, None, n.record.type, None, params) for n, params in come]
    arrived = dict.fromkeys((node.path for node in matching.added), ADDED)
    if matching.is_unrelated:
        return Structure((), states, arrived, 0, is_unrelated=True)
    unchanged = sum(state == SAME for state in states.values())
    return Structure(tuple(sorted(changes, key=lambda change: STATES.index(change.state))), states, arrived, unchanged)


def _whole(nodes: Sequence[Node], view: View) -> list[tuple[Node, int]]:
    """The topmost of the nodes, each with the parameters of all of them below it; a tied tensor counts once."""
    own: Counter[str] = Counter()
    for param in view.capture.params:
        own[param.module] += 0 if param.is_buffer else param.spec.numel
    paths = {node.path for node in nodes}
    tops = [node for node in nodes if node.path == "" or node.path.rpartition(".")[0] not in paths]
    return [(top, sum(own[node.path] for node in top.walk() if node.path in paths)) for top in tops]


def _pair_changes(
    node: Node, partner: Node, matching: Matching, own: tuple[dict[str, Own], dict[str, Own]]
) -> Iterator[ModuleChange]:
    shapes = _tensor_changes(own[0].get(node.path, {}), own[1].get(partner.path, {}), shapes=True)
    types = _tensor_changes(own[0].get(node.path, {}), own[1].get(partner.path, {}), shapes=False)
    # The path it would have if only the modules above it were renamed.
    if node.path == "":
        expected_path = ""
    else:
        parent = matching.partner.get(node.path.rpartition(".")[0])
        above = "" if parent is None else parent.path
        expected_path = f"{above}.{node.name}" if above else node.name
    if partner.path != expected_path:
        yield _changed(RENAMED, node, partner)
    # Weights without code have no types: that does not count as a change.
    if node.record.type != partner.record.type and node.record.type and partner.record.type:
        yield _changed(RETYPED, node, partner, shapes)
    elif shapes:
        yield _changed(RESHAPED, node, partner, shapes)
    elif types:
        yield _changed(RECAST, node, partner, types)


def _changed(state: str, node: Node, partner: Node, tensors: tuple[TensorChange, ...] = ()) -> ModuleChange:
    mine, theirs = node.record, partner.record
    return ModuleChange(
        state, node.path, partner.path, mine.type, theirs.type, mine.params, theirs.params, tensors=tensors
    )


def _tensor_changes(base: Own, other: Own, *, shapes: bool) -> tuple[TensorChange, ...]:
    names = dict.fromkeys((*base, *other))
    texts = [(name, _text(base, name, shapes=shapes), _text(other, name, shapes=shapes)) for name in names]
    return tuple(TensorChange(name, mine, theirs) for name, mine, theirs in texts if mine != theirs)


def _text(own: Own, name: str, *, shapes: bool) -> str | None:
    spec = own.get(name)
    if spec is None:
        return None if shapes else ""
    return format_shape(spec.shape) if shapes else spec.dtype


_COMPARED = numbers_in(Use.MODULES_COMPARED, MODULES)
# These do not vary from run to run: any difference is real.
FIXED = tuple(figure.key for figure in _COMPARED if figure.origin == STATIC)
MEASURED = tuple(figure.key for figure in _COMPARED if figure.origin != STATIC)
FIGURES = (*FIXED, *MEASURED)

# A module on each side, None where a side has none.
Nodes = tuple[Node | None, ...]


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """`rows` has the module's row of each side, None where a side has no such module. `states` are relative to the
    first side, whose own state is "same", or None if it has no such module. `is_below_absent`: the same sides lack the
    module above it, whose row is enough."""

    depth: int
    rows: tuple[Row | None, ...]
    states: tuple[str | None, ...]
    is_below_absent: bool = False

    @property
    def path(self) -> str:
        return str(next(row.path for row in self.rows if row is not None))

    @property
    def kind(self) -> str:
        return str(next(row.type for row in self.rows if row is not None))

    def values(self, key: str) -> tuple[float | None, ...]:
        return tuple(None if row is None else row[key] for row in self.rows)

    def members(self) -> dict[str, object]:
        """The row as plain data, without its figures."""
        return {
            "depth": self.depth,
            "paths": [found and found.path for found in self.rows],
            "types": [found and found.type for found in self.rows],
            "states": list(self.states),
            "changed": self.is_changed,
        }

    @property
    def is_changed(self) -> bool:
        """Whether its structure differs, or a figure that does not vary from run to run."""
        return any(state not in (SAME, None) for state in self.states) or self.differs_in(FIXED)

    def differs_in(self, keys: Sequence[str]) -> bool:
        """Whether one of these figures differs, or a side lacks the module; measured figures always differ and are
        ignored."""
        present = [row for row in self.rows if row is not None]
        fixed = [key for key in keys if key in FIXED] or FIXED
        return len(present) < len(self.rows) or any(row[key] != present[0][key] for row in present for key in fixed)


def module_rows(
    views: Sequence[View], matchings: Sequence[Matching], structures: Sequence[Structure]
) -> list[ModuleRow]:
    """Preorder of the first side; modules that only others have come last among the children of its place."""
    tables = [{row.path: row for row in view.modules} for view in views]
    roots: Nodes = tuple(view.tree for view in views)
    found: list[ModuleRow] = []
    waiting: list[tuple[int, Nodes, Nodes]] = [(0, roots, roots)]
    while waiting:
        depth, nodes, above = waiting.pop()
        rows = tuple(None if node is None else table[node.path] for node, table in zip(nodes, tables, strict=True))
        base, *others = nodes
        states: list[str | None] = [None if base is None else SAME]
        arrived: dict[str, list[Node | None]] = {}
        for side, (node, structure) in enumerate(zip(others, structures, strict=True)):
            if base is not None:
                states.append(structure.base_states[base.path])
            else:
                states.append(None if node is None else structure.other_states[node.path])
            for child in node.children if node is not None else ():
                if child.path in structure.other_states:
                    arrived.setdefault(child.name, [None] * len(others))[side] = child
        absent, absent_above = ([node is None for node in each] for each in (nodes, above))
        found.append(ModuleRow(depth, rows, tuple(states), None in nodes and absent == absent_above))
        below: list[Nodes] = [
            (child, *(matching.partner.get(child.path) for matching in matchings))
            for child in (base.children if base is not None else ())
        ]
        below += [(None, *places) for places in arrived.values()]
        waiting += [(depth + 1, children, nodes) for children in reversed(below)]
    return found
