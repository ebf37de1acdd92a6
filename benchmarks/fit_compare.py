"""Predictions of the configurations on this machine, and their comparison with what a device measured."""

from __future__ import annotations

import gzip
import json
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from fit_configurations import CONFIGURATIONS, build

MEASURED = Path(__file__).parent / "fit_measured.json"
FIGURES = ("allocated", "reserved", "used")


def predict(output: Path, match: str, sets: list[int] | None) -> int:
    """`tg.fit` of each configuration, its model on the meta device."""
    import torchgauge as tg
    from torchgauge.source.packages import import_optional

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import_optional("timm", "the benchmark")
    found: dict[str, Any] = {}
    for configuration in CONFIGURATIONS:
        if match not in configuration.name or (sets and configuration.held_out not in sets):
            continue
        started = time.perf_counter()
        given = configuration.inputs()
        try:
            try:
                with torch.device("meta"):
                    model = build(configuration)
            except NotImplementedError:  # it computes sizes with tensors
                model = build(configuration).to("meta")
            inputs = tuple(given["args"]) or given["kwargs"]
            result = tg.fit(
                model,
                on="h200",
                inputs=inputs,
                kwargs=given["kwargs"] if given["args"] else None,
                torch_version="2.11",
                **configuration.options,
            )
        except tg.TorchgaugeError as error:
            found[configuration.name] = {"error": str(error)}
            print(f"{configuration.name:48} {error}", flush=True)
            continue
        seconds = time.perf_counter() - started
        parameters = sum(result.by_class[name] for name in ("parameters", "buffers", "inputs"))
        found[configuration.name] = {
            "allocated_bytes": result.allocated_bytes,
            "reserved_bytes": result.reserved_bytes,
            "used_bytes": result.used_bytes,
            "required_bytes": result.required_bytes,
            "bounds": {name: [span.low, span.high] for name, span in result.bounds.items()},
            "verdict": result.verdict,
            "plain_sum_bytes": plain_sum(model, parameters, configuration.mode, result),
            "is_limit_tested": len(found) % 5 == 0,
        }
        print(f"{configuration.name:48} {result.allocated_bytes / 2**20:8.0f} MiB {seconds:5.1f} s", flush=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"torch": torch.__version__, "configurations": found}, indent=1))
    return 0


def plain_sum(model: torch.nn.Module, placed: int, mode: str, result: Any) -> int:
    """What people add up: parameters and inputs, in training gradients and two states, and the activations."""
    trained = sum(p.numel() * p.element_size() for p in model.parameters()) if mode == "train" else 0
    return int(placed + 3 * trained + result.by_class["activations"])


def read_measured(path: Path) -> dict[str, dict[str, Any]]:
    """By name: allocated, reserved, MemTracker's peak, and used where it was measured alone."""
    if path.suffix == ".json":
        found: dict[str, dict[str, Any]] = json.loads(path.read_text())["configurations"]
        return found
    merged: dict[str, dict[str, Any]] = {}
    for name in ("measured", "held_out"):
        file = path / f"{name}.json.gz"
        if file.exists():
            document = json.loads(gzip.decompress(file.read_bytes()))
            for key, row in document["configurations"].items():
                if "allocated" in row:
                    merged[key] = {k: row.get(k) for k in ("before", "allocated", "reserved", "tracker")}
            for key, row in document.get("sequential", {}).items():
                kept = {k: row[k] for k in ("before", "allocated", "reserved")} | merged.get(key, {})
                merged[key] = kept | {"used": row["used"]}
    return merged


def compare(predictions: Path, measured: Path = MEASURED) -> int:
    predicted = json.loads(predictions.read_text())["configurations"]
    truth = read_measured(measured)
    for held_out, title in enumerate(
        (
            "open",
            "held out",
            "held out, second set",
            "held out, third set",
            "held out, fourth set",
            "held out, fifth set",
        )
    ):
        names = [c.name for c in CONFIGURATIONS if c.held_out == held_out and c.name in truth]
        if names:
            print(f"\n{title}: {len(names)} configurations")
            table(names, predicted, truth)
    return 0


def table(names: list[str], predicted: dict[str, Any], truth: dict[str, Any]) -> None:
    errors: dict[str, list[float]] = {figure: [] for figure in (*FIGURES, "tracker", "plain sum")}
    inside: dict[str, list[bool]] = {figure: [] for figure in FIGURES}
    print(f"{'':48} {'measured':>9} {'allocated':>9} {'reserved':>9} {'used':>9} {'MemTracker':>10} {'sum':>8}")
    for name in names:
        real, ours = truth[name], predicted.get(name, {})
        if "allocated_bytes" not in ours:
            print(f"{name:48} {ours.get('error', 'not predicted')[:80]}")
            continue
        row = {f: ours[f"{f}_bytes"] / real[f] - 1 for f in FIGURES if real.get(f)}
        row |= {"tracker": real["tracker"] / real["allocated"] - 1} if real.get("tracker") else {}
        row["plain sum"] = ours["plain_sum_bytes"] / real["allocated"] - 1
        for figure in FIGURES:
            if real.get(figure):
                low, high = ours["bounds"][f"{figure}_bytes"]
                inside[figure].append(low <= real[figure] <= high)
        for figure, error in row.items():
            errors[figure].append(error)
        reported = "".join(
            f" {100 * row[f]:+8.2f}%" if f in row else f" {'':9}" for f in (*FIGURES, "tracker", "plain sum")
        )
        print(f"{name:48} {real['allocated'] / 2**20:9.0f}{reported}")
    for figure, values in errors.items():
        if values:
            sizes = sorted(map(abs, values))
            p95 = sizes[min(round(0.95 * (len(sizes) - 1)), len(sizes) - 1)]
            held = f", in bounds {sum(inside[figure])} of {len(inside[figure])}" if figure in inside else ""
            print(
                f"{figure:10} median {100 * statistics.median(sizes):6.2f} %  p95 {100 * p95:6.2f} %  "
                f"worst {100 * sizes[-1]:6.2f} %  of {len(sizes)}{held}"
            )
