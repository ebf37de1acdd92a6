"""The part of `collect_kernels.py` that makes tables from what a device measured, and from the published tables."""

from __future__ import annotations

import gzip
import json
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

PUBLISHED_DEVICES = ("a100_sxm", "h100_sxm", "h200_sxm", "l40s", "b200_sxm")


def compact_published(folder: Path, output: Path) -> int:
    """aiconfigurator's parquet files as one archive of integers."""
    import pandas

    from torchgauge.predict.published import MISSING, UNIT

    def logs(values: Any) -> Any:
        return np.round(np.log2(np.asarray(values, float)) * UNIT).astype(np.int16)

    arrays: dict[str, Any] = {}
    linear = {name: pandas.read_parquet(folder / f"{name}.gemm.parquet") for name in PUBLISHED_DEVICES}
    levels = {axis: sorted({int(v) for frame in linear.values() for v in frame[axis]}) for axis in "mnk"}
    arrays |= {f"levels.{axis}": np.array(values, np.int32) for axis, values in levels.items()}
    for name, frame in linear.items():
        own = {axis: sorted({int(v) for v in frame[axis]}) for axis in "mnk"}
        if own != levels:  # fewer levels: a separate grid
            arrays |= {f"{name}.levels.{axis}": np.array(values, np.int32) for axis, values in own.items()}
        grid = np.full([len(own[axis]) for axis in "mnk"], MISSING, np.int16)
        places = tuple(np.searchsorted(own[axis], frame[axis].to_numpy()) for axis in "mnk")
        grid[places] = logs(frame["latency_ms"].to_numpy() * 1e-3)
        arrays[f"{name}.linear"] = grid
        for which in ("prefill", "decode", "encoder"):
            path = folder / f"{name}.attention_{which}.parquet"
            if not path.exists():
                continue
            rows = pandas.read_parquet(path)
            if "window_size" in rows:
                rows = rows[rows["window_size"] == 0]
            length = rows["step"] + 1 if which == "decode" else rows["isl"]
            keys = rows.get("num_key_value_heads", rows["num_heads"])
            arrays[f"{name}.{which}"] = np.asfortranarray(np.stack([
                logs(rows["batch_size"] * rows["num_heads"]), logs(length), logs(rows["head_dim"]),
                logs(rows["num_heads"] / keys), logs(rows["latency_ms"] * 1e-3),
            ], 1))  # fmt: skip
    buffer = BytesIO()
    np.savez_compressed(buffer, **arrays)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(buffer.getvalue())
    print(f"{output}: {len(buffer.getvalue()):,} bytes")
    return 0


# Peak rates that times are put in relation to: NVIDIA's data sheet; 2 µs is what the shortest kernels take in a graph.
H200 = {"float64": 34e12, "float32": 67e12, "tf32": 494.7e12, "float16": 989.4e12, "bfloat16": 989.4e12}
# Replays of one kernel that differ by more than this say nothing.
MOST_SPREAD = 0.5
# Runs of the collection that are not what is traced (masks made under capture) or whose kernels are too few.
LEFT_OUT = ("bert-base bf16 b16 s512", "gpt2-768 bf16 b4 s512", "t5-512 bf16", "lstm-1024x3 b64 s128 fp32")


def build_tables(folder: Path) -> int:
    """The table of the package from a folder with what a device said (kernels, host, energy) and the signatures."""
    from torchgauge.predict.coordinates import locate
    from torchgauge.predict.kernel_tables import FOLDER, KernelTable, Rates, held_out, write_table

    calls = read_measured(folder)
    measured = [(locate(signature, cold), seconds) for _, signature, cold, seconds in calls]
    rates = Rates(H200, 4.8e12, 2e-6)
    plain = KernelTable.of("h200", rates, measured)
    spread, report = held_out(plain)
    facts = {
        "host": json.loads((folder / "host.json").read_text()),
        "energy": energy_of(folder, calls, plain),
        "run_factor": 1.04,
        "torch": "2.11.0+cu130, cuDNN 9.19, driver 580, an H200 in November 2026",
        "held_out": report,
    }
    table = KernelTable.of("h200", rates, measured, spread=spread, facts=facts)
    data = write_table(table)
    (FOLDER / "h200.npz").write_bytes(data)
    print(json.dumps(report, indent=1), json.dumps(facts["energy"], indent=1), f"{len(data):,} bytes", sep="\n")
    return 0


def extend_tables(folder: Path, replaced: tuple[str, ...]) -> int:
    """More kernels for the table of the package; those of the families in `replaced` take the place of the old."""
    from dataclasses import replace

    from torchgauge.predict.coordinates import locate
    from torchgauge.predict.kernel_tables import FOLDER, KernelTable, held_out, load_table, write_table

    table = load_table("h200")
    assert table is not None
    measured = [(locate(signature, cold), seconds) for _, signature, cold, seconds in read_measured(folder)]
    rows = {family: dict(kinds) for family, kinds in table.rows.items() if family not in replaced}
    for family, kinds in KernelTable.of("h200", table.rates, measured).rows.items():
        for kind, (at, offsets) in kinds.items():
            kept = rows.setdefault(family, {}).get(kind)
            more = (
                (at, offsets) if kept is None else (np.concatenate([kept[0], at]), np.concatenate([kept[1], offsets]))
            )
            rows[family][kind] = more
    whole = replace(table, rows=rows)
    spread, report = held_out(whole)
    data = write_table(replace(whole, spread=spread, facts=dict(table.facts) | {"held_out": report}))
    (FOLDER / "h200.npz").write_bytes(data)
    print(json.dumps(report, indent=1), f"{len(data):,} bytes", sep="\n")
    return 0


def read_measured(folder: Path) -> list[tuple[int, Any, list[bool], float]]:
    """Number, signature, which inputs were cold, seconds."""
    with gzip.open(folder / "signatures.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    found = []
    for line in (folder / "kernels.jsonl").read_text().splitlines():
        number, seconds, spread = json.loads(line)
        if seconds and spread < MOST_SPREAD:
            told, cold, _ = rows[number]
            found.append((number, signature_of(told), cold, seconds))
    return found


def signature_of(row: dict[str, Any]) -> Any:
    from torchgauge.facts import Cost, Signature, TensorSpec

    def spec(told: dict[str, Any]) -> TensorSpec:
        stride = None if told["stride"] is None else tuple(told["stride"])
        return TensorSpec(tuple(told["shape"]), told["dtype"], stride, told["stored"], told["index_bytes"])

    inputs, outputs = (tuple(map(spec, row[name])) for name in ("inputs", "outputs"))
    return Signature(
        row["op"], row["overload"], row["category"], row["status"], tuple(row["tags"]), inputs, outputs,
        row["attributes"], Cost(**row["cost"]), row["activation_bytes"],
    )  # fmt: skip


def energy_of(folder: Path, calls: list[tuple[int, Any, list[bool], float]], table: Any) -> dict[str, Any]:
    """Joules beyond the idle power by operation and type, byte and busy second: non-negative least squares, relative to
    what the counter said, on single kernels and (three times their weight) the collection's whole models."""
    from scipy.optimize import nnls

    from torchgauge.predict.coordinates import cold_inputs, is_silent, locate

    def work(place: Any) -> Any:
        kind = "half" if place.rate in ("float16", "bfloat16") else place.rate
        flops = [place.flops if kind == name else 0.0 for name in ("float32", "tf32", "half")]
        return np.array([*flops, place.cold_bytes, place.nbytes - place.cold_bytes]) * 1e-12

    told = json.loads((folder / "energy.json").read_text())
    idle = told[0]["idle_w"]
    places = {number: locate(signature, cold) for number, signature, cold, _ in calls}
    rows = [
        ([*work(places[row["call"]]), row["seconds"] * 1e2], row["joules"], row["seconds"], 1.0)
        for row in told[1:]
        if row["call"] in places
    ]
    configurations = {one.name: one for one in import_module("forecast_models").collected()}
    for line in (folder / "whole.jsonl").read_text().splitlines():
        found = json.loads(line)
        if "joules" not in found or found["name"] in LEFT_OUT:
            continue
        ops = import_module("collect_kernels").traced(configurations[found["name"]]).step_ops
        own = [locate(op.signature, cold) for op, cold in zip(ops, cold_inputs(ops), strict=True) if not is_silent(op)]
        busy = min(sum(2 ** table.estimate(place).log_s for place in own), found["energy_seconds"])
        rows.append(([*sum(work(place) for place in own), busy * 1e2], found["joules"], found["energy_seconds"], 3.0))
    left = np.array([row[0] for row in rows])
    joules, seconds, weight = (np.array([row[place] for row in rows]) for place in (1, 2, 3))
    best, _ = nnls(left * (weight / joules)[:, None], (joules - idle * seconds) * weight / joules)
    misses = np.abs((left @ best + idle * seconds) / joules - 1)
    float32, tf32, half, cold, warm = (float(value) * 1e-12 for value in best[:5])
    return {
        "idle_w": idle, "busy_w": float(best[5]) * 1e2, "per_byte_j": warm, "per_cold_byte_j": cold, "limit_w": 700.0,
        "per_flop_j": {"float32": float32, "tf32": tf32, "float16": half, "bfloat16": half}, "low": 0.75, "high": 1.45,
        "kernels": int((weight == 1).sum()), "median_error": float(np.median(misses[weight == 1])),
        "models": int((weight == 3).sum()), "mean_error": float(misses[weight == 3].mean()),
    }  # fmt: skip
