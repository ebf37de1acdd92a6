"""Where the cost lies: by kind of op, by phase and by type of layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from torchgauge.facts import Node, OpRecord, View
from torchgauge.facts.figures import Members
from torchgauge.report.content.ops import Slice, by_category, by_phase, layer_kinds
from torchgauge.report.options import Options
from torchgauge.report.page.payload import part
from torchgauge.report.ranking import energy_key, is_estimated, own_energy


@dataclass(frozen=True, slots=True)
class LayerCost:
    """Modules of one type, with what is done in them but not below."""

    name: str
    count: int
    params: int
    macs: int
    flops: int
    bytes_moved: int
    time_s: float | None
    energy: float | None


@part("distribution")
def distribution(view: View, options: Options) -> dict[str, object] | None:
    """`categories` and `phases` have a row for each kind of op and phase, `layers` for each type of module with the
    work done in it but not below; `resembles` are kinds of layers guessed from names and shapes alone."""
    if not view.capture.has_code:
        counts = view.architecture.layer_counts
        return {"resembles": [{"name": kind, "count": count} for kind, count in counts.items()]} if counts else None
    phases = by_phase(view)
    return {
        "energy_is_estimated": is_estimated(view),
        "categories": _slices(view, by_category(view), {op.index: op.category for op in view.capture.ops}),
        "phases": _slices(view, phases, {op.index: op.phase for op in view.capture.ops}) if len(phases) > 1 else [],
        "layers": [asdict(layer) for layer in _layers(view)],
    }


def _slices(view: View, slices: Iterable[Slice], names: Mapping[int, str]) -> list[dict[str, object]]:
    measured, energy = view.capture.measured, view.capture.energy
    times = _by_name(view.capture.ops, names, measured.ops if measured else {}, "time_s")
    joules = _by_name(view.capture.ops, names, energy.ops if energy else {}, energy_key(view))
    return [
        {
            "name": entry.name,
            "count": entry.ops,
            "uncounted": entry.uncounted,
            "macs": entry.macs,
            "flops": entry.flops,
            "bytes_moved": entry.bytes_moved,
            "time_s": times.get(entry.name),
            "energy": joules.get(entry.name),
        }
        for entry in slices
    ]


def _by_name(ops: Iterable[OpRecord], names: Mapping[int, str], rows: Mapping[int, Members], key: str) -> Counter[str]:
    sums: Counter[str] = Counter()
    for op in ops:
        value = rows.get(op.index, {}).get(key)
        if value is not None:
            sums[names[op.index]] += value
    return sums


def _layers(view: View) -> list[LayerCost]:
    nodes: dict[str, list[Node]] = {}
    for node in view.tree.walk():
        nodes.setdefault(node.record.type, []).append(node)
    params = {layer.kind: layer.params for layer in layer_kinds(view)}
    measured, energy = view.capture.measured, view.capture.energy
    times = measured.modules if measured else {}
    joules = energy.modules if energy else {}
    layers = [
        LayerCost(
            name=kind,
            count=len(members),
            params=params.get(kind, 0),
            macs=sum(node.own.macs for node in members),
            flops=sum(node.own.flops for node in members),
            bytes_moved=sum(node.own.bytes_read + node.own.bytes_written for node in members),
            time_s=sum(times.get(node.path, {}).get("self_time_s") or 0.0 for node in members) if times else None,
            energy=sum(own_energy(node, joules, energy_key(view)) for node in members) if joules else None,
        )
        for kind, members in nodes.items()
    ]
    shown = [one for one in layers if one.params or one.flops or one.bytes_moved or one.time_s or one.energy]
    return sorted(shown, key=lambda layer: (-layer.flops, -layer.params))
