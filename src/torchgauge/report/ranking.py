"""The most expensive modules and ops. What repeats counts together: twelve equal layers cost what twelve cost."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from torchgauge.facts import UNCOUNTED, Node, OpRecord, Sums, View

# What a list of places calls the root, whose path is empty.
THE_MODEL = "(the model itself)"


@dataclass(frozen=True, slots=True)
class RankedModules:
    """Equal modules at one place of repeated blocks (`layers.0–11.fc`), with the work done in them but not below."""

    paths: str
    kind: str
    count: int
    macs: int
    flops: int
    bytes_moved: int
    share: float


@dataclass(frozen=True, slots=True)
class RankedOps:
    """All calls of one op with equal shapes; the figures of an uncounted op are unknown, not 0."""

    op: str
    input_shapes: tuple[tuple[int, ...], ...]
    output_shapes: tuple[tuple[int, ...], ...]
    calls: int
    is_counted: bool
    macs: int
    flops: int
    bytes_moved: int
    share: float


def rank_modules(view: View, limit: int) -> list[RankedModules]:
    """By their own FLOPs; `share` is of the model's FLOPs."""
    groups: dict[Hashable, list[Node]] = {}
    for node in view.tree.walk():
        if node.own.flops:
            key = path_pattern(node.path), node.record.type, node.own.flops, node.own.macs
            groups.setdefault(key, []).append(node)
    ranked = [_ranked_modules(nodes, view.totals.flops) for nodes in groups.values()]
    return sorted(ranked, key=_expense, reverse=True)[:limit]


def rank_ops(view: View, limit: int) -> list[RankedOps]:
    """By FLOPs, ops and shapes taken together; `share` is of the model's FLOPs."""
    working = [op for op in view.capture.ops if op.cost.flops or op.cost.bytes_read or op.cost.bytes_written]
    ranked = [_ranked_ops(ops, view.totals.flops) for ops in equal_calls(working)]
    return sorted(ranked, key=_expense, reverse=True)[:limit]


def equal_calls(ops: Iterable[OpRecord]) -> list[list[OpRecord]]:
    """The calls of one op with equal shapes and types, together."""
    groups: dict[Hashable, list[OpRecord]] = {}
    for op in ops:
        signature = op.signature
        shapes = tuple(spec.shape for spec in signature.inputs), tuple(spec.shape for spec in signature.outputs)
        groups.setdefault((signature.op, shapes, signature.dtype), []).append(op)
    return list(groups.values())


def path_pattern(path: str) -> str:
    """`layers.3.fc` is one of `layers.*.fc`."""
    return ".".join("*" if part.isdigit() else part for part in path.split("."))


def join_paths(paths: list[str]) -> str:
    """Paths that differ in indices as one: `layers.0–11.fc`; an index with scattered values is a star."""
    return ".".join(_join_parts(parts) for parts in zip(*(path.split(".") for path in paths), strict=True))


def _join_parts(parts: tuple[str, ...]) -> str:
    distinct = sorted(set(parts), key=lambda part: (len(part), part))
    if len(distinct) == 1:
        return distinct[0]
    first, last = int(distinct[0]), int(distinct[-1])
    if last - first == len(distinct) - 1:
        return f"{first}–{last}"
    return f"{{{','.join(distinct)}}}" if len(distinct) <= 3 else "*"


def share_of(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _expense(entry: Any) -> tuple[int, int]:
    return entry.flops, entry.bytes_moved


def _ranked_modules(nodes: list[Node], flops: int) -> RankedModules:
    total = Sums()
    for node in nodes:
        total.add(node.own)
    return RankedModules(
        paths=join_paths([node.path for node in nodes]),
        kind=nodes[0].record.type,
        count=len(nodes),
        macs=total.macs,
        flops=total.flops,
        bytes_moved=total.bytes_read + total.bytes_written,
        share=share_of(total.flops, flops),
    )


def _ranked_ops(ops: list[OpRecord], flops: int) -> RankedOps:
    total = Sums.over(ops)
    signature = ops[0].signature
    return RankedOps(
        op=signature.op,
        input_shapes=tuple(spec.shape for spec in signature.inputs),
        output_shapes=tuple(spec.shape for spec in signature.outputs),
        calls=len(ops),
        is_counted=signature.status != UNCOUNTED,
        macs=total.macs,
        flops=total.flops,
        bytes_moved=total.bytes_read + total.bytes_written,
        share=share_of(total.flops, flops),
    )
