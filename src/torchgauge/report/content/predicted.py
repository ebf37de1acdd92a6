"""Predicted time on a device that one need not have: the ops and modules that take the most of it."""

from __future__ import annotations

from collections.abc import Iterator

from torchgauge.facts import View
from torchgauge.report.content.ops import RANKED, shapes_text
from torchgauge.report.model import Cell, Section, Table, Topic, figures, more, texts
from torchgauge.report.options import Options
from torchgauge.report.ranking import equal_calls, share_of
from torchgauge.units import format_exact, format_percent, format_seconds


def sections(view: View, options: Options) -> Iterator[Section]:
    if view.capture.predicted is None:
        return
    rows, first = view.capture.predicted.ops, view.capture.forecast[0]
    whole = first["predicted_time_s"]
    ranked = []
    for calls in equal_calls(op for op in view.capture.ops if rows.get(op.index)):
        found = [rows[op.index] for op in calls]
        seconds, device_s = (sum(row[key] for row in found) for key in ("predicted_time_s", "predicted_device_s"))
        longest = max(found, key=lambda row: row["predicted_time_s"])
        ranked.append((seconds, device_s, calls, longest))
    ranked.sort(key=lambda entry: -entry[0])
    limit = options.rows(*RANKED)
    lines = []
    for seconds, device_s, calls, longest in ranked[:limit]:
        signature = calls[0].signature
        shapes = [tuple(spec.shape for spec in specs) for specs in (signature.inputs, signature.outputs)]
        cells = [
            format_exact(len(calls)), format_seconds(seconds), format_percent(share_of(seconds, whole)),
            format_seconds(device_s), format_percent(longest["predicted_roof_share"]),
            longest["predicted_bound"] or "-", longest["predicted_source"] or "-",
        ]  # fmt: skip
        lines.append((Cell(f" {shapes_text(*shapes)}", signature.op), *map(Cell, cells)))
    headings = (*texts("Op"), *figures("×", "Time", "share", "on device", "of roof", "Bound", "Source"))
    note = "Predicted, not measured; equal calls together. Time includes what an op waits for the host."
    table = Table("", headings, tuple(lines), (*more(len(ranked) - limit, "kinds of calls"), note))
    yield Section(f"Where the time goes on {first['title']}, predicted", (table,), Topic.TIME, name="predicted-time")
