"""The part of `collect_kernels.py` that makes tables from what a device measured, and from the published tables."""

from __future__ import annotations

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
        if own != levels:  # fewer levels: a grid of its own
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
