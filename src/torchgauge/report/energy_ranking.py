"""Where the energy goes: the hungriest modules and ops. What repeats counts together."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from torchgauge.facts import Node, OpRecord, View
from torchgauge.report.ranking import equal_calls, join_paths, path_pattern, share_of

MEASURED_KEY, ESTIMATED_KEY = "energy_j", "estimated_energy_j"
# What a difference of sums may leave.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class HungryModules:
    """Modules at one place of repeated blocks, with what is used in them but not below; `flops_per_joule` is None where
    they do no arithmetic."""

    paths: str
    kind: str
    count: int
    joules: float
    share: float
    flops_per_joule: float | None


@dataclass(frozen=True, slots=True)
class HungryOps:
    """All calls of one op with equal shapes."""

    op: str
    input_shapes: tuple[tuple[int, ...], ...]
    output_shapes: tuple[tuple[int, ...], ...]
    calls: int
    joules: float
    share: float
    flops_per_joule: float | None


def is_estimated(view: View) -> bool:
    return view.energy is not None and view.energy.get("origin") == "estimated"


def energy_key(view: View) -> str:
    return ESTIMATED_KEY if is_estimated(view) else MEASURED_KEY


def whole_joules(view: View) -> float | None:
    """Of one run: measured, or the middle of the estimate."""
    if view.energy is None:
        return None
    joules: float | None = (view.energy.get("estimated_joules") or {}).get("value") if is_estimated(view) else None
    return joules if is_estimated(view) else view.energy.get("joules")


def rank_module_energy(view: View, limit: int) -> list[HungryModules]:
    """A module's own: what it uses without the modules below."""
    rows = view.capture.energy.modules if view.capture.energy else {}
    total = whole_joules(view) or 0.0
    groups: dict[Hashable, list[tuple[Node, float]]] = {}
    for node in view.tree.walk():
        own = own_energy(node, rows, energy_key(view))
        if own > _ROUNDING * total:
            groups.setdefault((path_pattern(node.path), node.record.type), []).append((node, own))
    ranked = [_hungry_modules(members, total) for members in groups.values()]
    return sorted(ranked, key=lambda entry: entry.joules, reverse=True)[:limit]


def own_energy(node: Node, rows: Mapping[str, Mapping[str, Any]], key: str) -> float:
    """Without the modules below."""
    below = sum(rows.get(child.path, {}).get(key) or 0.0 for child in node.children)
    return (rows.get(node.path, {}).get(key) or 0.0) - below


def _hungry_modules(members: list[tuple[Node, float]], total: float) -> HungryModules:
    joules = sum(own for _, own in members)
    flops = sum(node.own.flops for node, _ in members)
    return HungryModules(
        paths=join_paths([node.path for node, _ in members]),
        kind=members[0][0].record.type,
        count=len(members),
        joules=joules,
        share=share_of(joules, total),
        flops_per_joule=flops / joules if flops else None,
    )


def rank_op_energy(view: View, limit: int) -> list[HungryOps]:
    rows, key = view.capture.energy.ops if view.capture.energy else {}, energy_key(view)
    eating = [op for op in view.capture.ops if rows.get(op.index, {}).get(key)]
    ranked = [_hungry_ops(ops, rows, key, whole_joules(view) or 0.0) for ops in equal_calls(eating)]
    return sorted(ranked, key=lambda entry: entry.joules, reverse=True)[:limit]


def _hungry_ops(ops: list[OpRecord], rows: Mapping[int, Mapping[str, Any]], key: str, total: float) -> HungryOps:
    signature = ops[0].signature
    joules = sum(rows[op.index][key] for op in ops)
    flops = sum(op.cost.flops for op in ops)
    return HungryOps(
        op=signature.op,
        input_shapes=tuple(spec.shape for spec in signature.inputs),
        output_shapes=tuple(spec.shape for spec in signature.outputs),
        calls=len(ops),
        joules=joules,
        share=share_of(joules, total),
        flops_per_joule=flops / joules if flops else None,
    )
