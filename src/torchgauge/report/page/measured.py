"""Measured runs: undisturbed times, the slowest parts, unattributed time, the load of the machine, sweeps, and what a
run consumes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import TYPE_CHECKING

from torchgauge.facts import View
from torchgauge.facts.measurements import energy_of, measurements_of
from torchgauge.facts.plausibility import interval_share
from torchgauge.report.content.energy import carbon_section, energy_section, parts_notes, thermal_section
from torchgauge.report.content.ops import shapes_text
from torchgauge.report.content.sweep import (
    ENERGY,
    GUESS,
    NO_FRONT,
    ON_FRONT,
    PARETO,
    TIME,
    points_with_energy,
    sweep_points,
    thread_facts,
)
from torchgauge.report.content.system import plain_name
from torchgauge.report.content.system import sections as system_sections
from torchgauge.report.content.time import measured_section, op_times_note, residue_section
from torchgauge.report.options import Options
from torchgauge.report.page.payload import part, section_data
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
    withheld,
)

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Extent, Sampled

_RANKING_ROWS = 20
_MAX_LABELS = 8


@part("time")
def time(view: View, options: Options) -> dict[str, object] | None:
    """Rows are measured and never scaled to the whole."""
    if view.measurements is None:
        return None
    figures, residue = measurements_of(view), residue_section(view)
    latency, ops = figures.get("latency"), top_ops(view, BY_TIME, _RANKING_ROWS)
    module_phases = [
        {"paths": entry.paths, "count": entry.count, "seconds": entry.seconds}
        for entry in top_phases(view, _RANKING_ROWS)
    ]
    system = figures.get("system")
    quantities = [_quantity(name, found) for name, found in system["quantities"].items()] if system else []
    return {
        "measured": section_data(measured_section(view)),
        "latency": latency and {**latency, "precision": interval_share(latency)},
        "phases": [{"name": name, "time_s": seconds} for name, seconds in (figures.get("phases") or {}).items()],
        "modules": [
            {
                "paths": entry.paths,
                "kind": entry.kind,
                "count": entry.count,
                "self_time_s": entry.value,
                "share": entry.share,
                "flops": entry.flops,
            }
            for entry in top_modules(view, BY_TIME, _RANKING_ROWS)
        ],
        "module_phases": module_phases,
        "ops": [
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
            for entry in ops
        ],
        "withheld": withheld(view, BY_TIME),
        "ops_note": op_times_note(has_roof=any(entry.roof_share is not None for entry in ops)),
        "residue": residue and section_data(residue),
        "quantities": quantities,
        "machine": [section_data(section) for section in system_sections(view, options)],
    }


def _quantity(name: str, found: Sampled) -> dict[str, object]:
    """Its course over time. Of a quantity with a sensible mean over its labels (cores) that alone; `t_s` is empty where
    only the extent is known."""
    values = list(found.get("values") or ())
    by_label = dict(list((found.get("by_label") or {}).items())[:_MAX_LABELS])
    # With labels, a point is a list with one value per label.
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
    scaling = (measurements_of(view).get("threads") or {}).get("scaling") or []
    if not points and not scaling:
        return None
    return {
        "sweeps": [{"key": key, "points": [asdict(point) for point in found]} for key, found in points.items()],
        "scaling": scaling,
        "facts": list(thread_facts(view)),
    }


@part("energy")
def energy(view: View, options: Options) -> dict[str, object] | None:
    figures = energy_of(view)
    if figures is None:
        return None
    thermal, carbon = figures.get("thermal"), figures.get("carbon")
    heat = thermal_section(thermal) if thermal else None
    return {
        "is_estimated": is_estimated(view),
        "summary": section_data(energy_section(view, figures), has_plots=False),
        "range": figures.get("estimated_joules"),
        "modules": [
            {"paths": entry.paths, "kind": entry.kind, "count": entry.count, **_joules(entry)}
            for entry in top_modules(view, BY_ENERGY, _RANKING_ROWS)
        ],
        "ops": [
            {
                "op": entry.op,
                "shapes": shapes_text(entry.input_shapes, entry.output_shapes),
                "calls": entry.calls,
                **_joules(entry),
            }
            for entry in top_ops(view, BY_ENERGY, _RANKING_ROWS)
        ],
        "ops_notes": [reason] if (reason := withheld(view, BY_ENERGY)) else list(parts_notes(view)),
        "thermal": heat and section_data(heat, has_plots=False),
        "series": thermal.get("series") if thermal else None,
        "idle_watts": figures.get("idle_watts"),
        # `efficient` is None for an estimate, which follows the time.
        "pareto": [
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
        ],
        "front": {"title": PARETO, "marked": ON_FRONT, "unknown": NO_FRONT},
        "carbon": carbon and section_data(carbon_section(carbon)),
    }


def _joules(entry: TopModules | TopOps) -> dict[str, float | None]:
    return {"joules": entry.value, "share": entry.share, "flops_per_joule": rate(entry, entry.flops)}
