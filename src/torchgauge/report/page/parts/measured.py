"""Measured runs: undisturbed times, the slowest parts, unattributed time, the load of the machine, sweeps, and what a
run consumes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import TYPE_CHECKING

from torchgauge.facts import View
from torchgauge.facts.measurements import energy_of, measurements_of
from torchgauge.report.content.ops import shapes_text
from torchgauge.report.content.sweep import ENERGY, GUESS, TIME, points_with_energy, sweep_points
from torchgauge.report.content.system import counter_facts, plain_name
from torchgauge.report.content.time import find_residue, interval_share
from torchgauge.report.options import Options
from torchgauge.report.page.payload import part
from torchgauge.report.ranking import (
    BY_ENERGY,
    BY_TIME,
    TopModules,
    TopOps,
    is_estimated,
    rate,
    top_modules,
    top_ops,
    top_phases,
    whole_joules,
)

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Extent, Sampled

_RANKED = 20
_LABELS = 8


@part("time")
def time(view: View, options: Options) -> dict[str, object] | None:
    """Rows are measured and never scaled to the whole."""
    if view.measurements is None:
        return None
    figures, residue = measurements_of(view), find_residue(view)
    latency, threads = figures.get("latency"), figures.get("threads") or {}
    module_phases = [
        {"paths": entry.paths, "count": entry.count, "seconds": entry.seconds} for entry in top_phases(view, _RANKED)
    ]
    system, counters = figures.get("system"), figures.get("counters")
    sampled: dict[str, object] | None = None
    if system:
        cost = system.get("cost")
        sampled = {
            "duration_s": system["duration_s"],
            "cost_share": cost and cost["share"],
            "quantities": [_quantity(name, found) for name, found in system["quantities"].items()],
            "absent": _reasons(system["absent"]),
        }
    counted: dict[str, object] | None = None
    if counters:
        counted = {
            "facts": counter_facts(counters),
            "notes": list(counters.get("notes") or ()),
            "absent": _reasons(counters.get("absent") or {}),
        }
    return {
        "device": figures.get("device", view.capture.run.device),
        "failure": figures.get("failure"),
        "notes": list(figures.get("notes") or ()),
        "latency": latency and {**latency, "precision": interval_share(latency)},
        "phases": [{"name": name, "time_s": seconds} for name, seconds in (figures.get("phases") or {}).items()],
        "threads": {
            "intra_op": threads.get("intra_op"),
            "inter_op": threads.get("inter_op"),
            "utilisation": threads.get("utilisation"),
        },
        "surroundings": figures.get("surroundings") or {},
        "modules": _modules(view),
        "module_phases": module_phases,
        "ops": _ops(view),
        "residue": residue and {**asdict(residue), "unexplained_share": residue.unexplained_share},
        "system": sampled,
        "counters": counted,
    }


def _reasons(absent: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": plain_name(name), "reason": reason} for name, reason in absent.items()]


def _modules(view: View) -> list[dict[str, object]]:
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


def _ops(view: View) -> list[dict[str, object]]:
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


def _quantity(name: str, found: Sampled) -> dict[str, object]:
    """Its course over time. Of a quantity with a sensible mean over its labels (cores) that alone; `t_s` is empty where
    only the extent is known."""
    values = list(found.get("values") or ())
    by_label = dict(list((found.get("by_label") or {}).items())[:_LABELS])
    # With labels a point is a list, a value for each.
    points = [point for point in values if isinstance(point, list | tuple)]
    lines: dict[str, Sequence[object]] = {}
    if points and "mean" in found:
        known = ([value for value in point if value is not None] for point in points)
        lines = {"": [fmean(values) if values else None for values in known]}
    elif points:
        lines = {label: [point[place] for point in points] for place, label in enumerate(by_label)}
    elif values:
        lines = {"": values}
    extents: Mapping[str, Extent | Sampled] = {"": found} if "mean" in found else by_label
    return {
        "name": plain_name(name),
        "unit": found["unit"],
        "t_s": list(found.get("t_s") or ()),
        "lines": [{"label": label, "values": line} for label, line in lines.items()],
        "extents": [
            {"label": label, "min": extent["min"], "mean": extent["mean"], "max": extent["max"]}
            for label, extent in extents.items()
        ],
    }


@part("sweeps")
def sweeps(view: View, options: Options) -> dict[str, object] | None:
    points = sweep_points(view)
    threads = measurements_of(view).get("threads") or {}
    scaling = threads.get("scaling") or []
    if not points and not scaling:
        return None
    serial = (threads.get("serial_share") or {}).items()
    return {
        "sweeps": [{"key": key, "points": [asdict(point) for point in found]} for key, found in points.items()],
        "scaling": scaling,
        "utilisation": threads.get("utilisation"),
        "serial_share": [{"name": kind, "share": share} for kind, share in serial if share is not None],
    }


_ATTRIBUTION = ("method", "explained_share", "residue_j", "gap_s", "gap_joules", "waiting_watts", "busy_s")
_AS_THEY_ARE = (
    "origin", "reason", "boundary", "meters", "joules", "ci95_j", "net_joules", "watts_mean", "watts_peak",
    "idle_watts", "flops_per_joule", "joules_per_sample", "joules_per_token", "estimated_joules",
    "estimated_joules_per_sample", "estimated_watts_mean", "estimated_flops_per_joule", "estimated_from", "trials",
    "iterations", "window_s", "power_limit_watts", "device_best", "carbon",
)  # fmt: skip


@part("energy")
def energy(view: View, options: Options) -> dict[str, object] | None:
    figures = energy_of(view)
    if figures is None:
        return None
    attribution, basis, thermal = (figures.get("attribution"), figures.get("estimated_from"), figures.get("thermal"))
    heat: dict[str, object] | None = None
    if thermal:
        keys = ("series", "temperature_c", "clock_hz", "throttled", "drift", "absent")
        # That nothing held the device back is an answer.
        heat = {key: thermal.get(key) or None for key in keys} | {"throttled": thermal.get("throttled")}
    return {
        **{key: figures.get(key) for key in _AS_THEY_ARE},
        "is_estimated": is_estimated(view),
        "whole_joules": whole_joules(view),
        "notes": [*figures["notes"], *(basis["notes"] if basis else ())],
        "modules": [
            {"paths": entry.paths, "kind": entry.kind, "count": entry.count, **_joules(entry)}
            for entry in top_modules(view, BY_ENERGY, _RANKED)
        ],
        "ops": [
            {
                "op": entry.op,
                "shapes": shapes_text(entry.input_shapes, entry.output_shapes),
                "calls": entry.calls,
                **_joules(entry),
            }
            for entry in top_ops(view, BY_ENERGY, _RANKED)
        ],
        "attribution": {key: attribution.get(key) for key in _ATTRIBUTION} if attribution else None,
        "thermal": heat,
        "pareto": _pareto(view),
    }


def _joules(entry: TopModules | TopOps) -> dict[str, float | None]:
    return {"joules": entry.value, "share": entry.share, "flops_per_joule": rate(entry, entry.flops)}


def _pareto(view: View) -> list[dict[str, object]]:
    """The points of a sweep whose energy is known; `efficient` is None for an estimate, which follows the time."""
    return [
        {
            "name": f"{row['key']} {row['value']}",
            "time_s": row.get(TIME),
            "joules": row.get(ENERGY),
            "estimated": row.get(GUESS),
            "watts_mean": row.get("watts_mean"),
            "power_limit_watts": row.get("power_limit_watts"),
            "efficient": row.get("efficient"),
        }
        for row in points_with_energy(view)
    ]
