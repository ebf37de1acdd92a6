"""What a run consumes: measured or estimated, where it goes, how warm it gets, what it emits."""

from __future__ import annotations

from torchgauge.facts import View
from torchgauge.facts.measurements import energy_of
from torchgauge.report.content.ops import shapes_text
from torchgauge.report.content.sweep import ENERGY, GUESS, TIME, points_with_energy
from torchgauge.report.options import Options
from torchgauge.report.page.payload import part
from torchgauge.report.ranking import (
    BY_ENERGY,
    TopModules,
    TopOps,
    is_estimated,
    rate,
    top_modules,
    top_ops,
    whole_joules,
)

_RANKED = 20
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
