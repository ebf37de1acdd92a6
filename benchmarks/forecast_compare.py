"""Predictions of the proof's models on this machine, and their comparison with what a device measured."""

from __future__ import annotations

import json
import math
import statistics
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collect_kernels import traced
from forecast_models import PROOFS
from kernel_tables import FULL_BYTES

from torchgauge.predict.calibration import open_table, present_profile, profile_from
from torchgauge.predict.coordinates import Place, cold_inputs, is_silent, locate
from torchgauge.predict.host import Host
from torchgauge.predict.time import predict_ops, profile_of


def predict(output: Path, folder: Path | None = None, proof: str = "first", calibration: Path | None = None) -> int:
    """Graph and eager time and energy of each model, with the packaged host; with a folder of measurements also with
    the host as calibrated in that run (`calibrated`) and as measured beside each model (`beside`); with a file of
    `torchgauge system --calibrate` also from that file: `by_file` is what `tg.forecast(…, on=FILE)` says (on an H200
    the kernels of the package and the host of the file), `file_alone` are graphs with the kernels of the file. `work`
    and `full_s` are what energy is fitted on: operations by type and bytes, and seconds in which the device is full."""
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {}
    profile = profile_of("h200")
    of_run, beside = measured_hosts(folder) if folder is not None else (None, {})
    by_file = present_profile(str(calibration))[0] if calibration is not None else None
    alone = profile_from(open_table(calibration)) if calibration is not None else None
    for configuration in (one for half in PROOFS[proof] for one in half):
        trace = traced(configuration)
        ops, calls = trace.step_ops, trace.module_calls
        places = [
            locate(op.signature, cold) for op, cold in zip(ops, cold_inputs(ops), strict=True) if not is_silent(op)
        ]
        # Three quarters of the peak, 85 % of the bandwidth, 2.5 µs a kernel.
        rates = profile.rates
        roofline = sum(
            2.5e-6 + max(p.flops / rates.rate(p.rate) / 0.75, p.nbytes / rates.bytes_per_s / 0.85) for p in places
        )
        row: dict[str, Any] = {"roofline_s": roofline, "work": work_of(places)}
        # Training steps are not captured.
        captured = ops if configuration.mode == "train" else traced(configuration, captured=True).step_ops
        for execution in ("graph", "eager"):
            run_ops = captured if execution == "graph" else ops
            run = predict_ops(run_ops, profile, execution=execution, module_calls=calls)
            row[execution] = [run.time_s, run.low_s, run.high_s]
            row[f"{execution}_j"] = [run.energy_j, run.energy_low_j, run.energy_high_j]
            row["full_s"] = sum(op["device_s"] * min(op["nbytes"] / FULL_BYTES, 1) for op in run.ops)
        for name, host in (("calibrated", of_run), ("beside", beside.get(configuration.name))):
            if host is not None:
                run = predict_ops(ops, profile, module_calls=calls, host=host)
                row[name] = [run.time_s, run.low_s, run.high_s]
        for name, other, execution in (("by_file", by_file, "eager"), ("file_alone", alone, "graph")):
            if other is not None:
                run_ops = captured if execution == "graph" else ops
                run = predict_ops(run_ops, other, execution=execution, module_calls=calls)
                row[name] = [run.time_s, run.low_s, run.high_s]
        found[configuration.name] = row
        print(f"{configuration.name:40} {row['graph'][0] * 1e3:9.3f} ms {row['eager'][0] * 1e3:9.3f} ms", flush=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def measured_hosts(folder: Path) -> tuple[Host, dict[str, Host]]:
    """The middle of the run's calibrations with the range that they span, and the host beside each model."""
    speeds = json.loads((folder / "host.json").read_text())
    middle = {name: statistics.median(speed[name] for speed in speeds) for name in speeds[0]}
    apart = [abs(math.log2(speed["forward_s"] / middle["forward_s"])) for speed in speeds]
    of_run = Host.of(middle | {"spread": max(middle["spread"], *apart)})
    beside = {}
    for row in map(json.loads, (folder / "proof.jsonl").read_text().splitlines()):
        if "host" in row:
            beside[row["name"]] = Host.of(middle | row["host"])
    return of_run, beside


def work_of(places: Sequence[Place]) -> dict[str, float]:
    found = {"float32": 0.0, "tf32": 0.0, "half": 0.0, "cold_bytes": 0.0, "warm_bytes": 0.0}
    for place in places:
        kind = "half" if place.rate in ("float16", "bfloat16") else place.rate
        found[kind] = found.get(kind, 0.0) + place.flops
        found["cold_bytes"] += place.cold_bytes
        found["warm_bytes"] += place.nbytes - place.cold_bytes
    return found


def compare(*paths: Path) -> int:
    """A row per model, then the error of each figure: mean, 90th percentile, how many are within their interval. Of
    several sets, predictions and folders take turns."""
    predicted: dict[str, Any] = {}
    measured: dict[str, Any] = {}
    estimated: dict[str, Any] = {}
    for predictions, folder in zip(paths[::2], paths[1::2], strict=True):
        predicted |= json.loads(predictions.read_text())
        for found, name in ((measured, "proof.jsonl"), (estimated, "estimator.jsonl")):
            if (folder / name).exists():
                found |= {row["name"]: row for row in map(json.loads, (folder / name).read_text().splitlines())}
    errors: dict[str, list[tuple[float, bool]]] = {}
    head = ("model", "graph, ms", "error", "eager, ms", "packaged host", "calibrated", "beside", "energy, J", "error",
            "roofline", "RuntimeEstimator", "file, eager", "file alone, graph")  # fmt: skip
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for name, row in predicted.items():
        real = measured.get(name, {})
        kind = "training step" if " train" in name else "eager"
        graph, eager, joules = (real.get(key) for key in ("graph_s", "eager_s", "joules"))

        def judged(figure: str, span: Sequence[float] | None, value: float | None) -> str:
            if value is None or span is None:
                return ""
            error = span[0] / value - 1
            errors.setdefault(figure, []).append((error, span[1] <= value <= span[2]))
            return f"{error:+.1%}"

        cells = [name, f"{graph * 1e3:.3f}" if graph else "", judged("CUDA graph", row["graph"], graph)]
        cells += [f"{eager * 1e3:.3f}" if eager else real.get("error", "")[:40]]
        cells += [judged(f"{kind}, packaged host", row["eager"], eager)]
        cells += [judged(f"{kind}, host calibrated in the run", row.get("calibrated"), eager)]
        cells += [judged(f"{kind}, host beside the model", row.get("beside"), eager)]
        cells += [f"{joules:.3f}" if joules else ""]
        cells += [judged("energy", row["eager_j"] if kind != "eager" else row["graph_j"], joules)]
        truth = eager if kind != "eager" else graph
        guess = estimated.get(name, {}).get("seconds")
        for other, seconds in (("roofline", row["roofline_s"]), ("RuntimeEstimator", guess)):
            span = [seconds, math.inf, 0.0] if seconds is not None else None
            cells.append(judged(other, span, truth) or ("failed" if other == "RuntimeEstimator" else ""))
        cells += [judged(f"{kind}, on=FILE of a calibration", row.get("by_file"), eager)]
        cells += [judged("CUDA graph, kernels of the file alone", row.get("file_alone"), graph)]
        print("| " + " | ".join(cells) + " |")
    print("\n| figure | models | mean error | median | 90th percentile | within the 90 % interval |")
    print("|---|---|---|---|---|---|")
    for figure, found in errors.items():
        sizes = sorted(abs(error) for error, _ in found)
        is_ours = figure not in ("roofline", "RuntimeEstimator")
        inside = f"{sum(held for _, held in found)} of {len(found)}" if is_ours else ""
        tail = sizes[min(int(0.9 * len(sizes)), len(sizes) - 1)]
        mean, middle = statistics.mean(sizes), statistics.median(sizes)
        print(f"| {figure} | {len(sizes)} | {mean:.1%} | {middle:.1%} | {tail:.1%} | {inside} |")
    return 0
