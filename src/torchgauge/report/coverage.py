"""How far the figures can be trusted: what was counted, what was not, what never ran."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from torchgauge.facts import UNCOUNTED, Node, View
from torchgauge.report.ranking import share_of


@dataclass(frozen=True, slots=True)
class UncountedOp:
    op: str
    calls: int
    bytes_moved: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """Ops by status; the shares are those of the uncounted ones."""

    counted: int
    free: int
    uncounted: int
    uncounted_ops: tuple[UncountedOp, ...]
    ops_share: float
    bytes_share: float


def coverage(view: View) -> Coverage:
    statuses = Counter(op.status for op in view.capture.ops)
    calls: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    for op in view.capture.ops:
        if op.status == UNCOUNTED:
            calls[op.op] += 1
            moved[op.op] += op.cost.bytes_read + op.cost.bytes_written
    totals = view.totals
    return Coverage(
        counted=statuses["counted"],
        free=statuses["free"],
        uncounted=statuses[UNCOUNTED],
        uncounted_ops=tuple(UncountedOp(op, count, moved[op]) for op, count in calls.most_common()),
        ops_share=share_of(statuses[UNCOUNTED], totals.ops),
        bytes_share=share_of(sum(moved.values()), totals.bytes_read + totals.bytes_written),
    )


def unused_modules(view: View) -> list[Node]:
    """The topmost modules with parameters that took no part: never called, and no op used what is in them."""
    if not view.capture.ops:
        return []
    idle = _idle_paths(view)
    found, waiting = [], [view.tree]
    while waiting:
        node = waiting.pop()
        if node.record.params and node.path in idle:
            found.append(node)
        elif node.record.params:
            waiting.extend(reversed(node.children))
    return found


def _used_owners(view: View) -> set[str]:
    """Modules whose own parameters some op used, a tied one under any of its names."""
    names = {name for op in view.capture.ops for name in op.weights}
    aliases = {alias for param in view.capture.params if param.name in names for alias in param.aliases}
    return {name.rpartition(".")[0] for name in names | aliases}


def _idle_paths(view: View) -> set[str]:
    """Modules that took no part, and none below them."""
    used, idle = _used_owners(view), set()
    for node in reversed(list(view.tree.walk())):
        took_part = node.record.calls or node.own.ops or node.path in used
        if not took_part and all(child.path in idle for child in node.children):
            idle.add(node.path)
    return idle
