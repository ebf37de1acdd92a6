"""Every op call with all that is known of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torchgauge.facts import UNCOUNTED, Row, View
from torchgauge.facts.weight_ops import weight_ops
from torchgauge.report.energy_text import ABOUT
from torchgauge.report.escape import visible
from torchgauge.report.layout import Line, Span, wrap
from torchgauge.report.options import Options
from torchgauge.units import (
    format_bytes,
    format_count,
    format_exact,
    format_joules,
    format_percent,
    format_seconds,
    format_shape,
    format_value,
)

INDENT, LABEL = 2, 9


def node_details(view: View, options: Options) -> list[Line]:
    weights = {row["index"]: row for row in weight_ops(view.capture.ops, view.weights, view.capture.params)}
    lines: list[Line] = []
    for op in view.ops:
        lines += [()] if lines else []
        lines += wrap(visible(_title(op)), options.width, style="name")
        for label, text in _facts(op, weights.get(op.index)):
            lead = Span(" " * INDENT + label.ljust(LABEL), "dim")
            lines += wrap(visible(text), options.width, lead=(lead,))
    return lines


def _title(op: Row) -> str:
    name = f"{op.op}.{op.overload}" if op.overload else op.op
    return f"Node {op.index}: {name} in {op.module or 'the model itself'}"


def _facts(op: Row, weights: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    phase = "" if op.phase == "forward" else f", {op.phase}"
    yield "kind", f"{op.category}, {op.status}, {op.dtype or 'no tensors'}{phase}"
    yield "shapes", f"{_shapes_text(op.input_shapes)} → {_shapes_text(op.output_shapes)}"
    yield "work", _work_text(op)
    yield "memory", _memory_text(op)
    if op.time_s is not None:
        yield "time", _time_text(op)
    if rate := _rate_text(op):
        yield "rate", rate
    if op.kernels:
        yield "kernels", ", ".join(op.kernels)
    if energy := _energy_text(op):
        yield "energy", energy
    if op.weights:
        yield "weights", ", ".join(op.weights)
    if weights:
        yield "to save", _saving_text(weights)


def _shapes_text(shapes: Sequence[Sequence[int]]) -> str:
    """All of them: here is the place."""
    return ", ".join(format_shape(list(shape)) for shape in shapes) or "none"


def _work_text(op: Row) -> str:
    if op.status == UNCOUNTED:
        return "unknown: the op has no formula"
    return f"{format_exact(op.macs)} MACs, {format_exact(op.flops)} FLOPs"


def _memory_text(op: Row) -> str:
    text = f"{format_bytes(op.bytes_read)} read, {format_bytes(op.bytes_written)} written"
    if op.arithmetic_intensity is not None and op.status != UNCOUNTED:
        text += f", {format_value(op.arithmetic_intensity)} FLOPs per byte"
    return f"{text}; {format_bytes(op.live_bytes)} of activations alive"


def _time_text(op: Row) -> str:
    text = f"{format_seconds(op.time_s)}, measured in profiled runs"
    if op.bound:
        text += f"; bound by {op.bound}"
    return text + (f", {format_percent(op.roof_share)} of the roof" if op.roof_share is not None else "")


def _rate_text(op: Row) -> str:
    worked = [] if op.flops_per_s is None else [f"{format_count(op.flops_per_s)} FLOPs per second"]
    moved = [] if op.bytes_per_s is None else [f"{format_bytes(op.bytes_per_s)} moved per second"]
    return ", ".join(worked + moved)


def _energy_text(op: Row) -> str:
    if op.energy_j is not None:
        return f"{format_joules(op.energy_j)}, measured"
    if op.estimated_energy_j is None:
        return ""
    low, high = format_joules(op.estimated_energy_low_j), format_joules(op.estimated_energy_high_j)
    return f"{ABOUT}{format_joules(op.estimated_energy_j)}, ESTIMATED: between {low} and {high}"


def _saving_text(row: Mapping[str, Any]) -> str:
    """What the values of its weights allow."""
    pruned = format_percent(row["removable"]["0.01"])
    smallest = row["smallest_30db"] or "none"
    after = format_bytes(row["bytes_after"]["30db"])
    return (
        f"{pruned} of the weights prunable at 1 % error; smallest type at 30 dB: {smallest} "
        f"({format_bytes(row['bytes'])} to {after})"
    )
