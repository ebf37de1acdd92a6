"""Large checkpoints from their headers: seconds and peak memory, against the limits that must hold.

    python benchmarks/files.py

The safetensors files are sparse: they do not occupy their declared size on disk. Each is opened in a separate process,
so that its peak memory is that of the opening and of Python, without torch; the last cases are whole commands, with the
process that reads for them. Seconds are those of the processor: the others at work on the machine do not matter. A
million tensors are compared with what reads them and nothing else in the same run, `json.loads` of the header and
`torch.load`: on an ordinary core those take 2 and 60 seconds, and the command must take less than 60.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

MIB = 2**20
ROW = 4096
HUNDRED_GB = 100 * 10**9
SHARDS, TENSORS_PER_SHARD = 100, 2000
ARCHIVED = 50_000
MILLION = 1_000_000

_OPEN = """
import json, os, sys, time
import psutil

def peak_bytes():
    info = psutil.Process().memory_info()
    if hasattr(info, "peak_wset"):
        return info.peak_wset
    if sys.platform == "linux":
        # `ru_maxrss` would also count the process that started this one.
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    import resource
    # Kilobytes, but bytes on macOS.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

def open_index(path):
    from torchgauge.checkpoint import open_checkpoint

    return len(open_checkpoint(path).entries)

def run_command(path):
    from torchgauge.analysis import scan_weights

    scan = scan_weights(path, weights=False)
    str(scan)
    return len(scan.capture.stored.tensors)

def write_json(path):
    from torchgauge.cli import main

    sys.stdout = open(os.devnull, "w")
    main(["weights", path, "--no-weights", "--json"])
    sys.stdout = sys.__stdout__
    return 0

def read_header(path):
    with open(path, "rb") as stream:
        return len(json.loads(stream.read(int.from_bytes(stream.read(8), "little"))))

def load(path):
    import torch

    return len(torch.load(path, weights_only=True))

def cpu_seconds():
    return sum(os.times()[:4])

STEPS = {"open": open_index, "weights": run_command, "json": write_json, "json.loads": read_header, "torch.load": load}
start = cpu_seconds()
tensors = STEPS[sys.argv[1]](sys.argv[2])
seconds = cpu_seconds() - start
if sys.platform != "win32":
    import resource
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    own = peak_bytes
    peak_bytes = lambda: max(own(), children)
print(json.dumps({"seconds": seconds, "peak_bytes": peak_bytes(), "tensors": tensors, "torch": "torch" in sys.modules}))
"""


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    build: Callable[[Path], Path]
    limit_s: float
    limit_bytes: int
    step: str = "open"
    peer: str | None = None
    limit_ratio: float = inf


@dataclass(frozen=True, slots=True)
class Figure:
    seconds: float
    peak_bytes: int
    tensors: int
    torch: bool
    peer_seconds: float | None = None


def write_sparse(path: Path, shapes: dict[str, tuple[int, ...]], item: int = 2) -> None:
    """A safetensors file of bfloat16 tensors whose data was never written."""
    header: dict[str, object] = {}
    at = 0
    for name, shape in shapes.items():
        size = item
        for length in shape:
            size *= length
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": (at, at + size)}
        at += size
    text = json.dumps(header).encode()
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        stream.truncate(8 + len(text) + at)


def build_hundred_gb(folder: Path) -> Path:
    rows = HUNDRED_GB // (2 * ROW * 1000)
    path = folder / "large.safetensors"
    write_sparse(path, {f"model.layers.{n}.weight": (rows + 1, ROW) for n in range(1000)})
    return path


def build_shards(folder: Path) -> Path:
    """A mixture of experts: many tensors of middling size."""
    weight_map: dict[str, str] = {}
    for shard in range(SHARDS):
        file = f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"
        names = [f"model.layers.{shard}.mlp.experts.{n}.down_proj.weight" for n in range(TENSORS_PER_SHARD)]
        write_sparse(folder / file, dict.fromkeys(names, (256, ROW)))
        weight_map |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def build_archive(folder: Path) -> Path:
    """Many small tensors, as `torch.save` writes them."""
    import torch

    path = folder / "many.pt"
    torch.save({f"model.layers.{n}.weight": torch.zeros(4, 3) for n in range(ARCHIVED)}, path)
    return path


def build_million(folder: Path) -> Path:
    path = folder / "million.safetensors"
    write_sparse(path, {f"layers.{n}.weight": (4, 3) for n in range(MILLION)})
    return path


def build_million_archived(folder: Path) -> Path:
    import torch

    path = folder / "million.pt"
    torch.save({f"layers.{n}.weight": torch.zeros(4, 3) for n in range(MILLION)}, path)
    return path


_SHARDED = f"{SHARDS * TENSORS_PER_SHARD:,} tensors in {SHARDS} shards"
CASES = (
    Case("100 GB in one file", build_hundred_gb, limit_s=1.0, limit_bytes=500 * MIB),
    Case(f"{ARCHIVED:,} tensors in a torch archive", build_archive, limit_s=3.0, limit_bytes=500 * MIB),
    Case(_SHARDED, build_shards, limit_s=5.0, limit_bytes=500 * MIB),
    Case(f"{_SHARDED}, listed", build_shards, limit_s=30.0, limit_bytes=500 * MIB, step="weights"),
    Case("a million tensors, safetensors to JSON", build_million, inf, 1907 * MIB, "json", "json.loads", 20),
    Case("a million tensors, torch archive to JSON", build_million_archived, inf, 1907 * MIB, "json", "torch.load", 1),
)


def measure(case: Case) -> Figure:
    with tempfile.TemporaryDirectory() as folder:
        target = case.build(Path(folder))
        figure, *peer = [_run(step, target) for step in (case.step, case.peer) if step is not None]
    return replace(figure, peer_seconds=peer[0].seconds) if peer else figure


def _run(step: str, target: Path) -> Figure:
    command = [sys.executable, "-c", _OPEN, step, os.fspath(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Figure(**json.loads(done.stdout))


def main() -> int:
    broken = 0
    print(f"{'case':40}{'seconds':>9}{'limit':>8}{'peak MiB':>10}{'limit':>8}{'tensors':>10}")
    for case in CASES:
        figure = measure(case)
        ratio = figure.seconds / (figure.peer_seconds or inf)
        holds = (
            ratio <= case.limit_ratio
            and figure.seconds <= case.limit_s
            and figure.peak_bytes <= case.limit_bytes
            and not figure.torch
        )
        broken += not holds
        peer = f"   {ratio:.1f} × {case.peer}, limit {case.limit_ratio}" if case.peer else ""
        print(
            f"{case.name:40}{figure.seconds:9.2f}{case.limit_s:8.0f}{figure.peak_bytes / MIB:10.0f}"
            f"{case.limit_bytes / MIB:8.0f}{figure.tensors:10,}{peer}{'' if holds else '   BROKEN'}"
        )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
