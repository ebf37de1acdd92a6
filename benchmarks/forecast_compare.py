"""Predictions of the proof's models on this machine, and their comparison with what a device measured."""

from __future__ import annotations

import json
import statistics
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collect_kernels import traced
from forecast_models import PROOFS

from torchgauge.predict.coordinates import Place, cold_inputs, is_silent, locate
from torchgauge.predict.time import host_of, predict_ops, profile_of

FIGURES = ("graph", "eager", "train", "energy")


def predict(output: Path, host_file: Path | None = None, proof: str = "first") -> int:
    """Graph and eager time and energy of each model. The host is the one that came with the tables, or that of a file
    which the device's run has left. `work` is what energy is fitted on: operations by type, bytes, busy seconds."""
    warnings.simplefilter("ignore")
    host = host_of(json.loads(host_file.read_text())) if host_file is not None else None
    found: dict[str, Any] = {}
    rates = profile_of("h200").rates
    for configuration in (one for half in PROOFS[proof] for one in half):
        trace = traced(configuration)
        ops, calls = trace.step_ops, trace.module_calls
        places = [
            locate(op.signature, cold) for op, cold in zip(ops, cold_inputs(ops), strict=True) if not is_silent(op)
        ]
        # Three quarters of the peak, 85 % of the bandwidth, 2.5 µs a kernel.
        roofline = sum(
            2.5e-6 + max(p.flops / rates.rate(p.rate) / 0.75, p.nbytes / rates.bytes_per_s / 0.85) for p in places
        )
        row: dict[str, Any] = {"roofline_s": roofline, "work": work_of(places)}
        for execution in ("graph", "eager"):
            run = predict_ops(ops, "h200", execution=execution, module_calls=calls, host=host)
            row[execution] = [run.time_s, run.low_s, run.high_s]
            row[f"{execution}_j"] = [run.energy_j, run.energy_low_j, run.energy_high_j]
            row["device_s"] = run.device_s
        found[configuration.name] = row
        print(f"{configuration.name:40} {row['graph'][0] * 1e3:9.3f} ms {row['eager'][0] * 1e3:9.3f} ms", flush=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def work_of(places: Sequence[Place]) -> dict[str, float]:
    found = {"float32": 0.0, "tf32": 0.0, "half": 0.0, "cold_bytes": 0.0, "warm_bytes": 0.0}
    for place in places:
        kind = "half" if place.rate in ("float16", "bfloat16") else place.rate
        found[kind] = found.get(kind, 0.0) + place.flops
        found["cold_bytes"] += place.cold_bytes
        found["warm_bytes"] += place.nbytes - place.cold_bytes
    return found


def compare(predictions: Path, folder: Path) -> int:
    """A row per model, then the error of each figure: mean, 90th percentile, how many are within their interval."""
    predicted = json.loads(predictions.read_text())
    measured, estimated = (
        {row["name"]: row for row in map(json.loads, (folder / name).read_text().splitlines())}
        for name in ("proof.jsonl", "estimator.jsonl")
    )
    errors: dict[str, list[tuple[float, bool]]] = {name: [] for name in (*FIGURES, "roofline", "RuntimeEstimator")}
    print("| model | graph, ms | error | eager, ms | error | energy, J | error | roofline | RuntimeEstimator |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, row in predicted.items():
        real = measured.get(name, {})
        is_training = " train" in name
        cells = [name]
        for figure, key, span in (
            ("graph", "graph_s", row["graph"]),
            ("train" if is_training else "eager", "eager_s", row["eager"]),
            ("energy", "joules", row["eager_j"] if is_training else row["graph_j"]),
        ):
            value = real.get(key)
            if value is None:
                cells += ["", real.get("error", "")[:40] if figure == "graph" and not is_training else ""]
                continue
            error = span[0] / value - 1
            errors[figure].append((error, span[1] <= value <= span[2]))
            cells += [f"{value if key == 'joules' else value * 1e3:.3f}", f"{error:+.1%}"]
        truth = real.get("eager_s") if is_training else real.get("graph_s")
        guess = estimated.get(name, {}).get("seconds")
        for other, seconds in (("roofline", row["roofline_s"]), ("RuntimeEstimator", guess)):
            if truth and seconds is not None:
                errors[other].append((seconds / truth - 1, False))
                cells.append(f"{seconds / truth - 1:+.0%}")
            else:
                cells.append("failed" if other == "RuntimeEstimator" else "")
        print("| " + " | ".join(cells) + " |")
    print("\n| figure | models | mean error | median | 90th percentile | within the 90 % interval |")
    print("|---|---|---|---|---|---|")
    for figure, found in errors.items():
        sizes = sorted(abs(error) for error, _ in found)
        if sizes:
            inside = f"{sum(held for _, held in found)} of {len(found)}" if figure in FIGURES else ""
            tail = sizes[min(int(0.9 * len(sizes)), len(sizes) - 1)]
            mean, middle = statistics.mean(sizes), statistics.median(sizes)
            print(f"| {figure} | {len(sizes)} | {mean:.1%} | {middle:.1%} | {tail:.1%} | {inside} |")
    return 0
