"""Views with something in every chart and text section: measured, advised, verified, with long names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.report.energy_sample import estimated_energy, measured_energy
from tests.report.measured_sample import COUNTERS, SWEEP, SYSTEM, THREADS, measured_capture
from tests.report.sample import sample_capture, sample_view
from tests.report.weights_sample import weights_view
from torchgauge.facts import Measured, View
from torchgauge.hardware import Roof
from torchgauge.report import Options
from torchgauge.report.page import PARTS, plain

ROOF = Roof(2e10, 1e10)
ADVICE: dict[str, Any] = {
    "rule": "a-rule",
    "where": {"module": "stem.0", "ops": [0], "weight": None},
    "evidence": {"bytes_moved": 2**20, "count": 3, "places": [{"module": f"stem.{i}", "weight": None} for i in (0, 1)]},
    "recommendation": "do it",
    "code": "model = do(model)",
    "expected_gain": {"quantity": "time_s", "low": 0.1, "high": 0.3, "how": "assumed"},
    "risk": "none",
    "confidence": "high",
    "verified": None,
}
VERIFIED: dict[str, Any] = {
    "quantity": "time_s",
    "gain": 0.25,
    "ci95": [0.2, 0.3],
    "output_error": {"relative": 1e-6, "cosine": 1.0, "top1": 1.0},
    "kept": True,
    "reason": None,
}
PLAN: Any = {
    "rules": ["a-rule"],
    "quantity": "time_s",
    "gain": 0.25,
    "ci95": [0.2, 0.3],
    "output_error": VERIFIED["output_error"],
    "code": "def optimise(model):\n    return do(model)\n",
    "tried": [],
}


def all_measured() -> View:
    return View(measured_capture(sweep=SWEEP, threads=THREADS, system=SYSTEM, counters=COUNTERS))


def advised(**changes: Any) -> View:
    rows: Any = ({**ADVICE}, {**ADVICE, "rule": "kept", "verified": VERIFIED}, {**ADVICE, "rule": "refuted", **changes})
    return View(replace(sample_capture(), advice=rows, plan=PLAN))


def refuted() -> View:
    return advised(
        verified={**VERIFIED, "gain": -0.02, "ci95": [-0.03, -0.01], "kept": False, "reason": "it is slower"}
    )


def long_named() -> View:
    """Names and texts of ten thousand characters, in what was measured and advised."""
    name = "</script><img src=x>" + "x" * 10_000
    advice: Any = {
        **ADVICE,
        "where": {"module": name, "ops": [], "weight": None},
        "code": f"model.get_submodule('{name}')",
    }
    system = {**SYSTEM, "absent": {"temperature_c": name}}
    capture = measured_capture(system=system, notes=[name], failure=name, device=name)
    return View(replace(capture, advice=(advice,)))


SAMPLES: dict[str, Callable[[], View]] = {
    "long names": long_named,
    "static": sample_view,
    "measured": all_measured,
    "energy": measured_energy,
    "estimated": estimated_energy,
    "weights": weights_view,
    "advised": refuted,
}


def part_of(view: View, name: str) -> Any:
    return plain(PARTS[name](view, Options()))


def roofed(roof: Roof = ROOF) -> View:
    """Every op takes twice what the roof allows."""
    capture = sample_capture()
    rows: dict[int, Any] = {}
    for op in capture.ops:
        flops, moved = op.cost.flops, op.cost.bytes_read + op.cost.bytes_written
        if moved:
            seconds = 2 * roof.least_seconds(flops, moved)
            rates = {"flops_per_s": flops / seconds or None, "bytes_per_s": moved / seconds}
            rows[op.index] = {"time_s": seconds, "roof_share": 0.5, "bound": roof.bound(flops, moved), **rates}
    return View(replace(capture, measured=Measured(measured_capture().measured.figures, {}, rows)))  # type: ignore[union-attr]
