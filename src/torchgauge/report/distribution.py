"""Where the work and the parameters lie: by category of op, by phase, by type of module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torchgauge.facts import OpRecord, Sums, TensorSpec, View
from torchgauge.report.ranking import share_of


@dataclass(frozen=True, slots=True)
class Slice:
    """The ops of one category or phase, with their shares of the whole; `uncounted` of them have no known work."""

    name: str
    ops: int
    uncounted: int
    macs: int
    flops: int
    bytes_moved: int
    macs_share: float
    flops_share: float
    bytes_share: float


@dataclass(frozen=True, slots=True)
class LayerKind:
    """Modules of one type that are layers: without children, or with parameters of their own."""

    kind: str
    count: int
    params: int
    param_bytes: int
    share: float


def by_category(view: View) -> list[Slice]:
    return sorted(_slices(view, lambda op: op.category), key=lambda s: (s.flops, s.bytes_moved, s.ops), reverse=True)


def by_phase(view: View) -> list[Slice]:
    """In the order the phases ran."""
    return _slices(view, lambda op: op.phase)


def layer_kinds(view: View) -> list[LayerKind]:
    """By parameters, then by count. Tied parameters count once, in the module that has their first name."""
    owned: dict[str, list[TensorSpec]] = {}
    for param in view.capture.params:
        if not param.is_buffer:
            owned.setdefault(param.module, []).append(param.spec)
    kinds: dict[str, list[list[TensorSpec]]] = {}
    for node in view.tree.walk():
        if not node.children or node.path in owned:
            kinds.setdefault(node.record.type, []).append(owned.get(node.path, []))
    layers = [_layer_kind(kind, specs, view.totals.params) for kind, specs in kinds.items()]
    return sorted(layers, key=lambda layer: (layer.params, layer.count), reverse=True)


def _layer_kind(kind: str, modules: list[list[TensorSpec]], all_params: int) -> LayerKind:
    specs = [spec for module in modules for spec in module]
    params = sum(spec.numel for spec in specs)
    return LayerKind(kind, len(modules), params, sum(spec.nbytes for spec in specs), share_of(params, all_params))


def _slices(view: View, key: Callable[[OpRecord], str]) -> list[Slice]:
    groups: dict[str, Sums] = {}
    for op in view.capture.ops:
        groups.setdefault(key(op), Sums()).count(op.signature)
    return [_slice(name, figures, view) for name, figures in groups.items()]


def _slice(name: str, figures: Sums, view: View) -> Slice:
    totals, moved = view.totals, figures.bytes_read + figures.bytes_written
    return Slice(
        name=name,
        ops=figures.ops,
        uncounted=figures.uncounted_ops,
        macs=figures.macs,
        flops=figures.flops,
        bytes_moved=moved,
        macs_share=share_of(figures.macs, totals.macs),
        flops_share=share_of(figures.flops, totals.flops),
        bytes_share=share_of(moved, totals.bytes_read + totals.bytes_written),
    )
