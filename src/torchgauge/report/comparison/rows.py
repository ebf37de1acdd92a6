"""The modules of all sides in one tree, one row each, their figures side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torchgauge.facts import Node, Row, View
from torchgauge.facts.figures import MODULES, STATIC, Use, numbers_in
from torchgauge.report.comparison.matching import Matching
from torchgauge.report.comparison.structure import SAME, Structure

_COMPARED = numbers_in(Use.MODULES_COMPARED, MODULES)
# What does not vary from run to run: a difference is one.
FIXED = tuple(figure.key for figure in _COMPARED if figure.origin == STATIC)
MEASURED = tuple(figure.key for figure in _COMPARED if figure.origin != STATIC)
FIGURES = (*FIXED, *MEASURED)

# A module on each side, None where a side has none.
Nodes = tuple[Node | None, ...]


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """`rows` has the module's row of each side, None where a side has no such module; `states` says what it is there,
    seen from the first side (whose own state is "same", None where it has no such module). `is_below_absent`: the same
    sides lack the module above it, which says it all."""

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

    @property
    def is_changed(self) -> bool:
        """In its structure or in a figure that does not vary from run to run."""
        return any(state not in (SAME, None) for state in self.states) or self.differs_in(FIXED)

    def differs_in(self, keys: Sequence[str]) -> bool:
        """In one of these figures, or a side lacks it; measured ones always differ, and say nothing here."""
        present = [row for row in self.rows if row is not None]
        fixed = [key for key in keys if key in FIXED] or FIXED
        return len(present) < len(self.rows) or any(row[key] != present[0][key] for row in present for key in fixed)


def module_rows(
    views: Sequence[View], matchings: Sequence[Matching], structures: Sequence[Structure]
) -> list[ModuleRow]:
    """Preorder of the first side; modules that only others have come last among the children of its place."""
    return list(_Merging(views, matchings, structures).rows())


class _Merging:
    def __init__(self, views: Sequence[View], matchings: Sequence[Matching], structures: Sequence[Structure]) -> None:
        self.tables: list[Mapping[str, Row]] = [{row.path: row for row in view.modules} for view in views]
        self.roots = tuple(view.tree for view in views)
        self.matchings, self.structures = matchings, structures

    def rows(self) -> Iterator[ModuleRow]:
        waiting: list[tuple[int, Nodes, Nodes]] = [(0, self.roots, self.roots)]
        while waiting:
            depth, nodes, above = waiting.pop()
            sides = zip(nodes, self.tables, strict=True)
            rows = tuple(None if node is None else table[node.path] for node, table in sides)
            base, *others = nodes
            states: list[str | None] = [None if base is None else SAME]
            for node, structure in zip(others, self.structures, strict=True):
                if base is not None:
                    states.append(structure.base_states[base.path])
                else:
                    states.append(None if node is None else structure.other_states[node.path])
            is_below_absent = None in nodes and _absent(nodes) == _absent(above)
            yield ModuleRow(depth, rows, tuple(states), is_below_absent)
            waiting += [(depth + 1, below, nodes) for below in reversed(list(self._children(nodes)))]

    def _children(self, nodes: Nodes) -> Iterator[Nodes]:
        base, *others = nodes
        for child in base.children if base is not None else ():
            yield (child, *(matching.partner.get(child.path) for matching in self.matchings))
        arrived: dict[str, list[Node | None]] = {}
        for side, (node, structure) in enumerate(zip(others, self.structures, strict=True)):
            for child in node.children if node is not None else ():
                if child.path in structure.other_states:
                    arrived.setdefault(child.name, [None] * len(others))[side] = child
        yield from ((None, *places) for places in arrived.values())


def _absent(nodes: Nodes) -> list[int]:
    return [side for side, node in enumerate(nodes) if node is None]
