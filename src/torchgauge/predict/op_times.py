"""Predicted times of the ops and modules that an analysis saw, from those of the ops that the device runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator, Sequence

from torchgauge.facts import OpForecast, OpRecord, PredictedTimes, enclosing_paths
from torchgauge.facts.predictions import PredictedRow
from torchgauge.registry import grouped, summed


def times_of(ops: Sequence[OpRecord], timed: Sequence[OpForecast]) -> PredictedTimes:
    """Members of the rows of an analysis. The device runs other ops than the analysis saw (cuDNN's attention in place
    of the CPU's): each timed op is assigned to the op of its module that it replaces."""
    modules = grouped((path, row) for row in timed for path in enclosing_paths(row["module"]))
    by_place: dict[tuple[str, str], tuple[list[OpRecord], list[OpForecast]]] = {}
    for op in ops:
        by_place.setdefault((op.module, op.phase), ([], []))[0].append(op)
    for row in timed:
        by_place.setdefault((row["module"], row["phase"]), ([], []))[1].append(row)
    found: dict[int, list[OpForecast]] = {op.index: [] for op in ops}
    for own, there in by_place.values():
        for op, row in _matched(own, there):
            found[op.index].append(row)
    return PredictedTimes(
        {path: _members(rows, is_module=True) for path, rows in modules.items()},
        {index: _members(rows) for index, rows in found.items() if rows},
    )


def _matched(ops: Sequence[OpRecord], timed: Sequence[OpForecast]) -> Iterator[tuple[OpRecord, OpForecast]]:
    """The next op of the same kind and result, else the next of the same kind, else the previous op. None if the module
    has no op in the analysis: then the module's own row has the time."""
    if not ops:
        return
    waiting: dict[Hashable, deque[OpRecord]] = {}
    for op in ops:
        shapes = tuple(spec.shape for spec in op.signature.outputs)
        for key in ((op.category, shapes), op.category):
            waiting.setdefault(key, deque()).append(op)
    last, used = ops[0], set[int]()
    for row in timed:
        shapes = tuple(map(tuple, row["output_shapes"]))
        for key in ((row["category"], shapes), row["category"]):
            queue = waiting.get(key, deque())
            while queue and queue[0].index in used:
                queue.popleft()
            if queue:
                last = queue.popleft()
                used.add(last.index)
                break
        yield last, row


def _members(rows: Sequence[OpForecast], *, is_module: bool = False) -> PredictedRow:
    joules = [row["energy_j"] for row in rows if row["energy_j"] is not None]
    device_s = sum(row["device_s"] for row in rows)
    roof_s = sum((row["roof_share"] or 0.0) * row["device_s"] for row in rows)
    longest = max(rows, key=lambda row: row["time_s"])
    sources = summed((row["source"], row["device_s"]) for row in rows if row["device_s"])
    members: PredictedRow = {
        "predicted_time_s": sum(row["time_s"] for row in rows),
        "predicted_low_s": sum(row["low_s"] for row in rows),
        "predicted_high_s": sum(row["high_s"] for row in rows),
        "predicted_device_s": device_s,
        "predicted_energy_j": sum(joules) if joules else None,
        "predicted_roof_share": roof_s / device_s if device_s else None,
        "predicted_source": max(sources, key=lambda name: sources[name]) if sources else None,
    }
    return members if is_module else {**members, "predicted_bound": longest["bound"]}
