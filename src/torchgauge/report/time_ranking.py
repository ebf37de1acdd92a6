"""Where the measured time went: the slowest modules and ops. What repeats counts together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from torchgauge.facts import COUNTED, Node, OpRecord, View
from torchgauge.report.measurements import measured_member
from torchgauge.report.ranking import equal_calls, join_paths, path_pattern, share_of


@dataclass(frozen=True, slots=True)
class TimedModules:
    """Modules at one place of repeated blocks, with the time spent in them but not below; `share` is of the
    undisturbed run."""

    paths: str
    kind: str
    count: int
    self_time_s: float
    share: float
    flops: int


@dataclass(frozen=True, slots=True)
class TimedOps:
    """All calls of one op with equal shapes. Rates are those of all calls together, None where the op does no such
    work; `roof_share` is None where the device's limits are not known."""

    op: str
    input_shapes: tuple[tuple[int, ...], ...]
    output_shapes: tuple[tuple[int, ...], ...]
    calls: int
    time_s: float
    share: float
    flops_per_s: float | None
    bytes_per_s: float | None
    roof_share: float | None
    bound: str | None


@dataclass(frozen=True, slots=True)
class TimedPhases:
    """Modules at one place of repeated blocks: their own seconds in each phase of a training step."""

    paths: str
    count: int
    seconds: dict[str, float]

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())


def rank_module_phases(view: View, limit: int) -> list[TimedPhases]:
    """By the time of all phases together; empty unless a training step was measured."""
    groups: dict[str, list[str]] = {}
    phases = measured_member(view, "module_phases")
    for path in phases:
        groups.setdefault(path_pattern(path), []).append(path)
    ranked = []
    for paths in groups.values():
        seconds: Counter[str] = Counter()
        for path in paths:
            seconds.update(phases[path])
        ranked.append(TimedPhases(join_paths(paths), len(paths), dict(seconds)))
    return sorted(ranked, key=lambda entry: entry.total_s, reverse=True)[:limit]


def rank_module_times(view: View, limit: int) -> list[TimedModules]:
    measured = view.capture.measured
    groups: dict[Hashable, list[Node]] = {}
    for node in view.tree.walk():
        if measured and measured.modules.get(node.path, {}).get("self_time_s"):
            groups.setdefault((path_pattern(node.path), node.record.type), []).append(node)
    rows = measured.modules if measured else {}
    ranked = [_timed_modules(nodes, rows, view.totals.time_s or 0.0) for nodes in groups.values()]
    return sorted(ranked, key=lambda entry: entry.self_time_s, reverse=True)[:limit]


def _timed_modules(nodes: list[Node], rows: Mapping[str, Mapping[str, Any]], total: float) -> TimedModules:
    seconds = sum(rows[node.path]["self_time_s"] for node in nodes)
    return TimedModules(
        paths=join_paths([node.path for node in nodes]),
        kind=nodes[0].record.type,
        count=len(nodes),
        self_time_s=seconds,
        share=share_of(seconds, total),
        flops=sum(node.own.flops for node in nodes),
    )


def rank_op_times(view: View, limit: int) -> list[TimedOps]:
    """By the time of all equal calls; ops without a measured time are left out."""
    rows = view.capture.measured.ops if view.capture.measured else {}
    timed = [op for op in view.capture.ops if rows.get(op.index, {}).get("time_s")]
    ranked = [_timed_ops(ops, rows, view.totals.time_s or 0.0) for ops in equal_calls(timed)]
    return sorted(ranked, key=lambda entry: entry.time_s, reverse=True)[:limit]


def _timed_ops(ops: list[OpRecord], rows: Mapping[int, Mapping[str, Any]], total: float) -> TimedOps:
    signature = ops[0].signature
    measured = [rows[op.index] for op in ops]
    seconds = sum(row["time_s"] for row in measured)
    flops = sum(op.cost.flops for op in ops) if signature.status == COUNTED else 0
    moved = sum(op.cost.bytes_read + op.cost.bytes_written for op in ops)
    return TimedOps(
        op=signature.op,
        input_shapes=tuple(spec.shape for spec in signature.inputs),
        output_shapes=tuple(spec.shape for spec in signature.outputs),
        calls=len(ops),
        time_s=seconds,
        share=share_of(seconds, total),
        flops_per_s=flops / seconds if flops else None,
        bytes_per_s=moved / seconds if moved else None,
        roof_share=_roof_share(measured),
        bound=_bound(measured),
    )


def _roof_share(rows: list[Mapping[str, Any]]) -> float | None:
    """The least time the device needs for all calls over the time they took."""
    known = [(row["roof_share"] * row["time_s"], row["time_s"]) for row in rows if row.get("roof_share") is not None]
    return sum(least for least, _ in known) / sum(taken for _, taken in known) if known else None


def _bound(rows: list[Mapping[str, Any]]) -> str | None:
    """What bounds the calls that take the most time together."""
    seconds: Counter[str | None] = Counter()
    for row in rows:
        seconds[row.get("bound")] += row["time_s"]
    return seconds.most_common(1)[0][0]
