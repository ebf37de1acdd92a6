"""Equal blocks of the tree as one: a transformer's twelve layers are one line, `0–11 ×12`.

Siblings fold when they follow each other, are named by a number after the same stem (`0`, `1`; `block1`, `block2`) and
agree in type, structure, shapes and figures. A folded block and all below it show the figures of all members together,
so that children still add up to their parent; parameters that members share count once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from torchgauge.facts import Node, Row, View, tensor_specs
from torchgauge.facts.figures import MODULES, figures_of
from torchgauge.facts.module import NUMBERED
from torchgauge.facts.quantized import size_of
from torchgauge.registry import grouped


@dataclass(frozen=True, slots=True)
class FoldedBlock:
    """One line of the folded tree: `count` siblings, and all nodes that it covers."""

    name: str
    count: int
    members: tuple[Node, ...]
    row: Row
    children: tuple[FoldedBlock, ...]

    def walk(self) -> Iterator[FoldedBlock]:
        waiting = [self]
        while waiting:
            block = waiting.pop()
            yield block
            waiting.extend(reversed(block.children))


def fold(view: View) -> FoldedBlock:
    """The tree of the view with equal neighbouring blocks as one."""
    return _Folding(view).fold(view.tree)


class _Run:
    """Sibling positions that become one block; each holds the nodes at that position in all the blocks folded above."""

    def __init__(self, positions: Sequence[Sequence[Node]], around: _Run | None) -> None:
        self.name = run_name([position[0].name for position in positions])
        self.path: str = f"{around.path}.{self.name}" if around is not None and around.path else self.name
        self.count = len(positions)
        self.members = tuple(node for position in positions for node in position)
        self.inside: list[_Run] = []


class _Folding:
    """The state of one folding: shapes of subtrees by number, parameters by module."""

    def __init__(self, view: View) -> None:
        self.rows = {row.path: row for row in view.modules}
        # The weights below each module path, tied ones under all their names.
        weights = [param for param in view.capture.params if param.is_weight]
        self.params = grouped((path, param) for param in weights for path in param.holders)
        # Equal subtrees get equal numbers, children before their parents: a number covers the whole subtree, so each
        # node is looked at once.
        numbers: dict[tuple[object, ...], int] = {}
        self.kind: dict[str, int] = {}
        for node in reversed(list(view.tree.walk())):
            record = node.record
            key = (
                record.type,
                record.calls,
                record.params,
                record.trainable_params,
                record.param_bytes,
                tuple(tensor_specs(record.inputs)),
                tuple(tensor_specs(record.outputs)),
                tuple(node.own.values()),
                tuple((child.name, self.kind[child.path]) for child in node.children),
            )
            self.kind[node.path] = numbers.setdefault(key, len(numbers))

    def fold(self, root: Node) -> FoldedBlock:
        def likeness(indexed: tuple[int, list[Node]]) -> tuple[object, ...]:
            index, position = indexed
            match = NUMBERED.fullmatch(position[0].name)
            # The index keeps a name without a number apart from its neighbours.
            return (match[1], self.kind[position[0].path]) if match else (index,)

        runs = [_Run([[root]], None)]
        for run in runs:
            positions = [list(position) for position in zip(*(node.children for node in run.members), strict=True)]
            alike = groupby(enumerate(positions), likeness)
            run.inside = [_Run([position for _, position in group], run) for _, group in alike]
            runs += run.inside
        blocks: dict[_Run, FoldedBlock] = {}
        for run in reversed(runs):
            children = tuple(blocks.pop(inner) for inner in run.inside)
            blocks[run] = FoldedBlock(run.name, run.count, run.members, self._row(run.members, run.path), children)
        return blocks[runs[0]]

    def _row(self, members: tuple[Node, ...], path: str) -> Row:
        first = self.rows[members[0].path]
        if len(members) == 1:
            return first
        row = Row(first | {"path": path, "aliases": []})
        for key in (figure.key for figure in figures_of(MODULES) if figure.additive):
            known = [value for member in members if (value := self.rows[member.path][key]) is not None]
            row[key] = sum(known) if known else None
        # Parameters that members share count once.
        weights = {id(param): param for member in members for param in self.params.get(member.path, ())}.values()
        size = size_of(weights)
        row["logical_params"], row["bits_per_weight"] = size.logical, size.bits_per_weight
        params = [param for param in weights if not param.is_buffer]
        row["params"] = sum(param.spec.numel for param in params)
        row["param_bytes"] = sum(param.nbytes for param in params)
        if first.trainable_params is not None:
            row["trainable_params"] = sum(param.spec.numel for param in params if param.trainable)
        return row


def run_name(names: list[str]) -> str:
    """`0–11` for the names 0 to 11, `block1–3` for block1 to block3."""
    first, last = NUMBERED.fullmatch(names[0]), NUMBERED.fullmatch(names[-1])
    if len(names) == 1 or first is None or last is None:
        return names[0]
    return f"{names[0]}–{last[2]}"
