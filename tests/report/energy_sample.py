"""The sample capture with energy made by hand: every figure is a closed form of the constants below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from tests.report.measured_sample import figures as measured_figures
from tests.report.sample import sample_capture
from torchgauge.energy import MEASURED, Analysed, Circumstances, Footprint, blank, completed, given_grid, unavailable
from torchgauge.facts import Capture, EnergyFacts, Measured, View
from torchgauge.hardware import Peaks

OP_J = 0.5
PEAKS = Peaks("A GPU", {"float32": 10e12}, 1e12, 500.0, "its datasheet")
CPU = Circumstances("A CPU", "cpu", cores=4, time_s=0.1)
NO_METER = "no energy meter: RAPL: \x1b[31mnot there"


THERMAL = {
    "series": {
        "power_w": {"t_s": [0.0, 1.0, 2.0], "values": [100.0, 400.0, 200.0]},
        "temperature_c": {"t_s": [0.0, 1.0], "values": [30.0, 60.0]},
    },
    "temperature_c": {"first": 30.0, "last": 60.0, "min": 30.0, "max": 60.0},
    "clock_hz": {"first": 1.98e9, "last": 1.5e9, "min": 1.5e9, "max": 1.98e9},
    "throttled": {"power_cap": 0.25},
    "is_throttled": True,
    "drift": {"joules_per_degree": 0.01, "correlation": 0.9, "first_to_last": 0.02},
    "absent": {},
}


def measured_energy(**changes: Any) -> View:
    """Every op takes the same; the whole is a tenth more than the ops together."""
    capture = sample_capture()
    whole = 1.1 * OP_J * len(capture.ops)
    known = {
        "joules": whole,
        "ci95_j": [0.99 * whole, 1.01 * whole],
        "net_joules": 0.75 * whole,
        "watts_mean": 300.0,
        "watts_peak": 350.0,
        "idle_watts": 75.0,
        "flops_per_joule": 2e9,
        "joules_per_sample": whole,
        "joules_per_token": whole / 16,
        "trials": 5,
        "window_s": 15.0,
        "power_limit_watts": 500.0,
        "meters": [{"name": "NVML energy counter", "available": True}],
        "thermal": THERMAL,
        "attribution": {"method": "replayed", "explained_share": 1 / 1.1, "residue_j": whole - whole / 1.1},
    }
    ops: dict[int, Any] = {op.index: {"energy_j": OP_J} for op in capture.ops}
    facts = EnergyFacts(cast(Any, {**blank(MEASURED), **known, **changes}), _module_energy(capture), ops)
    return _view(capture, completed(facts, _analysed(capture), CPU, PEAKS, Footprint(given_grid(360), 1.5)))


def _module_energy(capture: Capture) -> dict[str, Any]:
    def below(path: str, module: str) -> bool:
        return not path or module == path or module.startswith(f"{path}.")

    counts = {m.path: sum(below(m.path, op.module) for op in capture.ops) for m in capture.modules}
    return {path: {"energy_j": OP_J * count} for path, count in counts.items() if count}


def estimated_energy() -> View:
    capture = sample_capture()
    facts = EnergyFacts(unavailable(NO_METER))
    return _view(capture, completed(facts, _analysed(capture), CPU, None, Footprint(given_grid(360))))


def swept(rows: Sequence[dict[str, Any]]) -> View:
    capture = sample_capture()
    return View(replace(capture, measured=Measured(cast(Any, measured_figures(capture) | {"sweep": list(rows)}))))


def _analysed(capture: Capture) -> Analysed:
    return Analysed(capture.ops, capture.modules)


def _view(capture: Capture, facts: EnergyFacts) -> View:
    return View(replace(capture, energy=facts))
