"""What changed in the structure: modules that came, went, have another name, type, shape or precision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchgauge.facts import Node, View
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
    """Of an added, removed or renamed subtree the topmost module stands for all below it; the parameters of what was
    added or removed are without those of modules below it that only moved."""

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
    """`states` is by the path in the first model, and by that in the other for what is new there."""

    changes: tuple[ModuleChange, ...]
    base_states: dict[str, str]
    other_states: dict[str, str]
    unchanged: int


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
    # Where the module is, if only those above it have other names.
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
