"""Cost by kind of op, phase and type of layer; and the roofline: arithmetic intensity against the device's peaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from math import floor, log2
from typing import Any

from torchgauge.advise import Machine
from torchgauge.facts import COUNTED, OpRecord, Sums, View
from torchgauge.facts.figures import Members
from torchgauge.hardware import Roof
from torchgauge.registry import grouped
from torchgauge.report.content.ops import Slice, by_category, by_phase, layer_kinds
from torchgauge.report.options import Options, format_shapes
from torchgauge.report.page.payload import part
from torchgauge.report.ranking import BY_TIME, energy_key, equal_calls, is_estimated, own_energy, top_ops


@part("distribution")
def distribution(view: View, options: Options) -> dict[str, object] | None:
    """`categories` and `phases` have a row for each kind of op and phase, `layers` for each type of module with the
    work done in it but not below; `resembles` are kinds of layers guessed from names and shapes alone."""
    if not view.capture.has_code:
        counts = view.architecture.layer_counts
        return {"resembles": [{"name": kind, "count": count} for kind, count in counts.items()]} if counts else None
    nodes = grouped((node.record.type, node) for node in view.tree.walk())
    params = {layer.kind: layer.params for layer in layer_kinds(view)}
    measured, energy = view.capture.measured, view.capture.energy
    times = measured.modules if measured else {}
    joules = energy.modules if energy else {}
    layers: list[dict[str, Any]] = []
    for kind, members in nodes.items():
        own = Sums()
        for node in members:
            own.add(node.own)
        seconds = sum(times.get(node.path, {}).get("self_time_s") or 0.0 for node in members) if times else None
        energy_j = sum(own_energy(node, joules, energy_key(view)) for node in members) if joules else None
        if params.get(kind) or own.flops or own.bytes_moved or seconds or energy_j:
            cost = {**_work(own), "time_s": seconds, "energy": energy_j}
            layers.append({**cost, "name": kind, "count": len(members), "params": params.get(kind, 0)})
    phases = by_phase(view)
    return {
        "energy_is_estimated": is_estimated(view),
        "categories": _slices(view, by_category(view), {op.index: op.category for op in view.capture.ops}),
        "phases": _slices(view, phases, {op.index: op.phase for op in view.capture.ops}) if len(phases) > 1 else [],
        "layers": sorted(layers, key=lambda layer: (-layer["flops"], -layer["params"])),
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
            **_work(entry),
            "time_s": times.get(entry.name),
            "energy": joules.get(entry.name),
        }
        for entry in slices
    ]


def _work(sums: Sums | Slice) -> dict[str, int]:
    return {"macs": sums.macs, "flops": sums.flops, "bytes_moved": sums.bytes_moved}


def _by_name(ops: Iterable[OpRecord], names: Mapping[int, str], rows: Mapping[int, Members], key: str) -> Counter[str]:
    sums: Counter[str] = Counter()
    for op in ops:
        value = rows.get(op.index, {}).get(key)
        if value is not None:
            sums[names[op.index]] += value
    return sums


# More dots would cover each other; the slowest are kept.
_MAX_DOTS = 1500
# Ops whose rates agree so closely have one roof over them.
_SAME_RATE_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class DevicePeaks:
    """`name` is None where the rates were recovered from measured ops."""

    name: str | None
    flops_per_s: dict[str, float]
    bytes_per_s: float | None
    source: str


@dataclass(frozen=True, slots=True)
class Dot:
    """Equal calls of an op. `source` is where a prediction is from; None for what was measured."""

    op: str
    category: str
    shapes: str
    calls: int
    intensity: float
    flops_per_s: float
    time_s: float
    share: float | None
    roof_share: float | None
    bound: str | None
    source: str | None = None


@part("roofline")
def roofline(view: View, options: Options) -> dict[str, object] | None:
    """`points` are equal calls together, where ops were timed, else as predicted for the first device of `forecast`;
    `histogram` is of the shapes alone."""
    # Ops, FLOPs and bytes in bins of arithmetic intensity, one for each power of two.
    bins: dict[int, dict[str, int]] = {}
    for op in view.capture.ops:
        if op.status == COUNTED and op.cost.flops and op.cost.bytes_moved:
            found = bins.setdefault(
                floor(log2(op.cost.flops / op.cost.bytes_moved)), {"ops": 0, "flops": 0, "bytes": 0}
            )
            found["ops"] += 1
            found["flops"] += op.cost.flops
            found["bytes"] += op.cost.bytes_moved
    histogram = [{"low": 2.0**power, "high": 2.0 ** (power + 1), **bins[power]} for power in sorted(bins)]
    if not histogram:
        return None
    points = _measured_dots(view)
    is_predicted = not points and view.capture.predicted is not None
    device, peaks = view.capture.run.device, None
    if is_predicted:
        first = view.capture.forecast[0]
        device, source = first["title"], "data sheet, as used by the prediction"
        if rates := first.get("peaks"):
            peaks = DevicePeaks(device, rates["flops_per_s"], rates["bytes_per_s"], source)
    else:
        peaks = device_peaks(view)
    return {
        "device": device,
        "is_predicted": is_predicted,
        "peaks": peaks and asdict(peaks),
        "ridges": _ridges(peaks, view.capture.ops) if peaks else [],
        "points": [asdict(dot) for dot in (_predicted_dots(view) if is_predicted else points)],
        "histogram": histogram,
    }


def device_peaks(view: View) -> DevicePeaks | None:
    """Look the device up by its exact name; if it is unknown, recover its peaks from the measured ops."""
    known = Machine.of(view.capture).peaks
    if known is None:
        # `roof_share` is the least possible time over the time taken: the least times of the ops hold both limits.
        # A limit is taken only where two ops agree on it.
        rows = view.capture.measured.ops if view.capture.measured else {}
        flops: dict[str, list[float]] = {}
        moved: list[float] = []
        for op in view.capture.ops:
            row = rows.get(op.index, {})
            least_s = (row.get("roof_share") or 0.0) * (row.get("time_s") or 0.0)
            if least_s:
                flops.setdefault(op.signature.dtype or "", []).append(op.cost.flops / least_s)
                moved.append(op.cost.bytes_moved / least_s)
        rates = {dtype: rate for dtype, found in flops.items() if (rate := _agreed(found))}
        bandwidth = _agreed(moved)
        if not bandwidth:
            return None
        source = "recovered from the ops' shares of the roof; float32 is TF32 where the run allowed it"
        return DevicePeaks(None, rates, bandwidth, source)
    return DevicePeaks(known.name, dict(known.flops_per_s), known.bytes_per_s, known.source)


def _agreed(rates: Iterable[float]) -> float | None:
    """The largest rate, if a second op has it too."""
    ranked = sorted(rates, reverse=True)[:2]
    agree = len(ranked) == 2 and ranked[0] > 0 and ranked[0] - ranked[1] <= _SAME_RATE_TOLERANCE * ranked[0]
    return ranked[0] if agree else None


def _ridges(peaks: DevicePeaks, ops: Iterable[OpRecord]) -> list[dict[str, object]]:
    """One ridge for each type that the model computes in and whose peak is known."""
    if not peaks.bytes_per_s:
        return []
    used = {op.signature.dtype for op in ops if op.cost.flops}
    used |= {"tf32"} if "float32" in used else set()
    return [
        {"dtype": dtype, "flops_per_s": rate, "intensity": Roof(rate, peaks.bytes_per_s).ridge}
        for dtype, rate in sorted(peaks.flops_per_s.items(), key=lambda item: item[1])
        if dtype in used
    ]


def _measured_dots(view: View) -> list[Dot]:
    categories = {op.op: op.category for op in view.capture.ops}
    return [
        Dot(
            op=entry.op,
            category=categories[entry.op],
            shapes=format_shapes([list(shape) for shape in entry.input_shapes]),
            calls=entry.calls,
            intensity=entry.flops / entry.bytes_moved,
            flops_per_s=entry.flops / entry.value,
            time_s=entry.value,
            share=entry.share,
            roof_share=entry.roof_share,
            bound=entry.bound,
        )
        for entry in top_ops(view, BY_TIME, _MAX_DOTS)
        if entry.flops and entry.bytes_moved
    ]


def _predicted_dots(view: View) -> list[Dot]:
    """The rates that the kernels are predicted to reach, time spent waiting for the host excluded."""
    assert view.capture.predicted is not None
    rows = view.capture.predicted.ops
    whole = sum(row["predicted_device_s"] for row in rows.values()) or 1.0
    found = []
    for calls in equal_calls(op for op in view.capture.ops if rows.get(op.index, {}).get("predicted_device_s")):
        signature, sums = calls[0].signature, Sums.over(calls)
        seconds = sum(rows[op.index]["predicted_device_s"] for op in calls)
        if not sums.flops or not sums.bytes_moved:
            continue
        longest = max((rows[op.index] for op in calls), key=lambda row: row["predicted_device_s"])
        found.append(
            Dot(
                op=signature.op,
                category=signature.category,
                shapes=format_shapes([list(spec.shape) for spec in signature.inputs]),
                calls=len(calls),
                intensity=sums.flops / sums.bytes_moved,
                flops_per_s=sums.flops / seconds,
                time_s=seconds,
                share=seconds / whole,
                roof_share=longest["predicted_roof_share"],
                bound=longest["predicted_bound"],
                source=longest["predicted_source"],
            )
        )
    return sorted(found, key=lambda dot: -dot.time_s)[:_MAX_DOTS]
