"""Runs saved as JSON in tests/data/runs, from which every format is rendered: a CNN that was counted, a transformer
with measurements and energy made by hand, and a file of weights.

Machine, time and version are made up, so that a rendering depends on nothing but the file. New members of the document
get into the files with `pytest tests/report --regenerate`; `python -m tests.report.saved_runs` makes them from scratch.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from tests.report.energy_sample import CPU, OP_J, THERMAL
from tests.report.measured_sample import COUNTERS, MEDIAN_S, MS, OP_S, SWEEP, SYSTEM, THREADS, figures, op_row
from tests.report.sample import ENVIRONMENT
from torchgauge.analysis import Analysis, load
from torchgauge.facts import Capture, EnergyFacts, Measured, TraceRecord

FOLDER = Path(__file__).parents[1] / "data" / "runs"
RUNS = ("cnn", "measured", "weights")


def run_path(name: str) -> Path:
    return FOLDER / f"{name}.json"


def load_run(name: str) -> Analysis:
    return load(run_path(name))


def make_runs() -> None:
    import torchgauge as tg
    from tests.report.saved_models import SmallCNN, SmallTransformer, token_ids, write_weights

    counted = tg.analyze(SmallCNN(), input_size=(1, 3, 32, 32))
    run = tg.analyze(SmallTransformer().eval(), inputs=token_ids())
    capture = _settled(run)
    measured = Analysis(replace(capture, measured=_measured(capture), energy=_energy(capture)))
    with TemporaryDirectory() as folder:
        # The document names the file as it was given.
        before = Path.cwd()
        os.chdir(folder)
        try:
            write_weights(Path("weights.safetensors"))
            weights = tg.analyze("weights.safetensors", deep=True)
            weights = Analysis(_settled(weights))
        finally:
            os.chdir(before)
    FOLDER.mkdir(parents=True, exist_ok=True)
    Analysis(_settled(counted)).save(run_path("cnn"))
    measured.save(run_path("measured"))
    weights.save(run_path("weights"))


def _settled(run: Analysis) -> Capture:
    """Everything lazy is computed; nothing depends on this machine."""
    assert run.architecture is not None
    assert run.advice is not None
    return replace(run.capture, environment=ENVIRONMENT, created="2026-01-02T03:04:05+00:00", version="0.1.0")


def _measured(capture: Capture) -> Measured:
    more: dict[str, Any] = {"sweep": SWEEP, "threads": THREADS, "system": SYSTEM, "counters": COUNTERS}
    ops: dict[int, Any] = {
        op.index: op_row(op.cost.flops, op.cost.bytes_read + op.cost.bytes_written) for op in capture.ops
    }
    times = {path: OP_S * count for path, count in _ops_below(capture).items()}
    own = {path: OP_S * sum(op.module == path for op in capture.ops) for path in times}
    modules: dict[str, Any] = {
        path: {"time_s": time, "self_time_s": own[path], "time_share": time / MEDIAN_S} for path, time in times.items()
    }
    return Measured(cast(Any, figures(capture) | more), modules, ops, _trace(capture))


def _ops_below(capture: Capture) -> dict[str, int]:
    """The modules in which anything ran."""
    below = {
        module.path: sum(f"{op.module}.".startswith(f"{module.path}.") or not module.path for op in capture.ops)
        for module in capture.modules
    }
    return {path: count for path, count in below.items() if count}


def _trace(capture: Capture) -> TraceRecord:
    names = ("", *dict.fromkeys(op.op for op in capture.ops))
    calls = tuple((2 * op.index * MS, 2 * MS, names.index(op.op), 0, op.index) for op in capture.ops)
    end = 2 * len(capture.ops) * MS
    return TraceRecord(end, names, modules=((0, end, 0, 0),), calls=calls, memory=((MS, 4096, 0), (end, -4096, 0)))


def _energy(capture: Capture) -> EnergyFacts:
    """Every op takes the same; the whole is a tenth more than the ops together."""
    from torchgauge.energy import MEASURED, Analysed, Footprint, blank, completed, given_grid
    from torchgauge.hardware import Peaks

    parts = OP_J * len(capture.ops)
    known = {
        "joules": 1.1 * parts, "ci95_j": [parts, 1.2 * parts], "net_joules": 0.8 * parts, "watts_mean": 300.0,
        "watts_peak": 350.0, "idle_watts": 75.0, "flops_per_joule": 2e9, "joules_per_sample": 1.1 * parts, "trials": 5,
        "window_s": 15.0, "power_limit_watts": 500.0, "thermal": THERMAL,
        "meters": [{"name": "NVML energy counter", "available": True}],
        "attribution": {"method": "replayed", "explained_share": 1 / 1.1, "residue_j": 0.1 * parts},
    }  # fmt: skip
    modules: dict[str, Any] = {path: {"energy_j": OP_J * count} for path, count in _ops_below(capture).items()}
    facts = EnergyFacts(
        cast(Any, {**blank(MEASURED), **known}), modules, {op.index: {"energy_j": OP_J} for op in capture.ops}
    )
    peaks = Peaks("A GPU", {"float32": 10e12}, 1e12, 500.0, "its datasheet")
    return completed(facts, Analysed(capture.ops, capture.modules), CPU, peaks, Footprint(given_grid(360), 1.5))


if __name__ == "__main__":
    make_runs()
