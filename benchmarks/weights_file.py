"""A checkpoint on disk: the rate and the peak memory of a scan, compared with reading the file with `cat`.

The file should be larger than the machine's memory: then neither finds it in the page cache.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import psutil
import torch
from judging import Verdict
from tables import table

OF_CAT = 0.80
PEAK_BYTES = 10**9
ROWS, COLUMNS = 8192, 4096


def measure_file(gigabytes: float, folder: Path) -> dict[str, Any]:
    path = folder / "torchgauge-benchmark.safetensors"
    try:
        nbytes = write_random(path, int(gigabytes * 1e9))
        first, _ = _run(["cat", str(path)])
        scan, peak = _run([sys.executable, "-m", "torchgauge", "weights", str(path), "--no-deep", "--json"])
        second, _ = _run(["cat", str(path)])
    finally:
        path.unlink(missing_ok=True)
    return {"bytes": nbytes, "cat": nbytes / min(first, second), "scan": nbytes / scan, "peak_bytes": peak}


def write_random(path: Path, nbytes: int) -> int:
    """A safetensors file of bfloat16 matrices with normal values; really written, no two tensors alike."""
    tensor_bytes = 2 * ROWS * COLUMNS
    count = max(nbytes // tensor_bytes, 1)
    header = {
        f"model.layers.{number}.weight": {
            "dtype": "BF16",
            "shape": [ROWS, COLUMNS],
            "data_offsets": [number * tensor_bytes, (number + 1) * tensor_bytes],
        }
        for number in range(count)
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    values = torch.randn(ROWS * COLUMNS, generator=torch.Generator().manual_seed(0))
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for number in range(count):
            stored = (values * 0.02 * (1 + number / count)).to(torch.bfloat16)
            stream.write(stored.view(torch.uint8).numpy())
    return count * tensor_bytes


def file_table(found: dict[str, Any]) -> str:
    cells = [f"{found['bytes'] / 1e9:.1f}", f"{found['cat'] / 1e9:.2f}", f"{found['scan'] / 1e9:.2f}",
             f"{found['scan'] / found['cat']:.0%}", f"{found['peak_bytes'] / 1e6:.0f}"]  # fmt: skip
    return table(["GB", "cat GB/s", "scan GB/s", "of cat", "peak MB"], [cells])


def judge_file(found: dict[str, Any]) -> list[Verdict]:
    share, peak = found["scan"] / found["cat"], found["peak_bytes"]
    return [
        Verdict(f"a scan at {OF_CAT:.0%} of the rate of cat or more", f"{share:.0%}", share >= OF_CAT),
        Verdict(f"a scan holds less than {PEAK_BYTES / 1e6:.0f} MB", f"{peak / 1e6:.0f} MB", peak < PEAK_BYTES),
    ]


def _run(command: list[str]) -> tuple[float, int]:
    """Seconds and peak memory, sampled: what the system says of a child includes this process's, which started it."""
    start, peak = perf_counter(), 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as child:
        process = psutil.Process(child.pid)
        while child.poll() is None:
            with suppress(psutil.NoSuchProcess):
                peak = max(peak, process.memory_info().rss)
            sleep(0.005)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command)
    return perf_counter() - start, peak
