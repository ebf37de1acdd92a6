"""Measured time: undisturbed runs, the slowest parts, unattributed time, the load of the machine, and sweeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from statistics import fmean
from typing import Any

from torchgauge.facts import View
from torchgauge.report.content.ops import shapes_text
from torchgauge.report.content.sweep import sweep_points
from torchgauge.report.content.system import counter_facts, plain_name
from torchgauge.report.content.time import find_residue, interval_share
from torchgauge.report.measurements import measured_member, measured_rows
from torchgauge.report.options import Options
from torchgauge.report.page.payload import part
from torchgauge.report.ranking import BY_TIME, rate, top_modules, top_ops, top_phases

_RANKED = 20
_LABELS = 8


@part("time")
def time(view: View, options: Options) -> dict[str, Any] | None:
    """Rows are measured and never scaled to the whole."""
    figures = view.measurements
    if figures is None:
        return None
    latency, residue = figures.get("latency"), find_residue(view)
    module_phases = [
        {"paths": entry.paths, "count": entry.count, "seconds": entry.seconds} for entry in top_phases(view, _RANKED)
    ]
    return {
        "device": figures.get("device", view.capture.run.device),
        "failure": figures.get("failure"),
        "notes": list(figures.get("notes") or ()),
        "latency": latency and {**latency, "precision": interval_share(latency)},
        "phases": [{"name": name, "time_s": seconds} for name, seconds in (figures.get("phases") or {}).items()],
        "threads": _members(measured_member(view, "threads"), ("intra_op", "inter_op", "utilisation")),
        "surroundings": measured_member(view, "surroundings"),
        "modules": _modules(view),
        "module_phases": module_phases,
        "ops": _ops(view),
        "residue": residue and {**asdict(residue), "unexplained_share": residue.unexplained_share},
        "system": _system(measured_member(view, "system")),
        "counters": _counters(measured_member(view, "counters")),
    }


def _members(figures: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: figures.get(name) for name in names}


def _modules(view: View) -> list[dict[str, Any]]:
    return [
        {
            "paths": entry.paths,
            "kind": entry.kind,
            "count": entry.count,
            "self_time_s": entry.value,
            "share": entry.share,
            "flops": entry.flops,
        }
        for entry in top_modules(view, BY_TIME, _RANKED)
    ]


def _ops(view: View) -> list[dict[str, Any]]:
    return [
        {
            "op": entry.op,
            "shapes": shapes_text(entry.input_shapes, entry.output_shapes),
            "calls": entry.calls,
            "time_s": entry.value,
            "share": entry.share,
            "flops_per_s": rate(entry, entry.flops),
            "bytes_per_s": rate(entry, entry.bytes_moved),
            "roof_share": entry.roof_share,
            "bound": entry.bound,
        }
        for entry in top_ops(view, BY_TIME, _RANKED)
    ]


def _system(figures: Mapping[str, Any]) -> dict[str, Any] | None:
    if not figures:
        return None
    return {
        "duration_s": figures.get("duration_s"),
        "cost_share": (figures.get("cost") or {}).get("share"),
        "quantities": [_quantity(name, found) for name, found in (figures.get("quantities") or {}).items()],
        "absent": [{"name": plain_name(name), "reason": why} for name, why in (figures.get("absent") or {}).items()],
    }


def _quantity(name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """Its course over time. Of a quantity with a sensible mean over its labels (cores) that alone; `t_s` is empty where
    only the extent is known."""
    values = list(found.get("values") or ())
    has_labels = bool(values) and isinstance(values[0], list | tuple)
    is_mean = "mean" in found
    lines: dict[str, Any] = {}
    if values and has_labels and is_mean:
        lines = {"": [_mean(row) for row in values]}
    elif values and has_labels:
        labels = list(found.get("by_label") or {})[:_LABELS]
        lines = {label: [row[place] for row in values] for place, label in enumerate(labels)}
    elif values:
        lines = {"": values}
    extents = {"": found} if is_mean else dict(list((found.get("by_label") or {}).items())[:_LABELS])
    return {
        "name": plain_name(name),
        "unit": found["unit"],
        "t_s": list(found.get("t_s") or ()),
        "lines": [{"label": label, "values": line} for label, line in lines.items()],
        "extents": [{"label": label, **_members(extent, ("min", "mean", "max"))} for label, extent in extents.items()],
    }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _counters(figures: Mapping[str, Any]) -> dict[str, Any] | None:
    if not figures:
        return None
    return {
        "facts": counter_facts(figures),
        "notes": list(figures.get("notes") or ()),
        "absent": [{"name": plain_name(name), "reason": why} for name, why in (figures.get("absent") or {}).items()],
    }


@part("sweeps")
def sweeps(view: View, options: Options) -> dict[str, Any] | None:
    points = sweep_points(view)
    scaling = measured_rows(view, "scaling", within="threads")
    if not points and not scaling:
        return None
    threads = measured_member(view, "threads")
    serial = (threads.get("serial_share") or {}).items()
    return {
        "sweeps": [{"key": key, "points": [asdict(point) for point in found]} for key, found in points.items()],
        "scaling": scaling,
        "utilisation": threads.get("utilisation"),
        "serial_share": [{"name": kind, "share": share} for kind, share in serial if share is not None],
    }
