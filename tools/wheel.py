"""What fills a wheel, and whether it works alone.

    python tools/wheel.py dist/*.whl        as `make dist` runs it

The wheel is unpacked into a folder of its own and run from there, with the dependencies of this environment and without
the checkout: an analysis of a model of timm, and a scan of weights in a process that cannot import torch. The exit
status is 1 where a command fails or the wheel is larger than `LARGEST`.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from pathlib import Path

LARGEST = 6_000_000
KINDS = {
    ".py": "code", ".npz": "times of kernels (LZMA)", ".json": "times of the host, memory of convolutions",
    ".tsv": "names and shapes of known models", ".js": "the page", ".css": "the page",
}  # fmt: skip
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from torchgauge.cli import main
sys.exit(main(sys.argv[1:]))
"""


def main() -> int:
    (wheel,) = map(Path, sys.argv[1:])
    size = wheel.stat().st_size
    print(f"{wheel.name}: {size / 1e6:.2f} MB (limit {LARGEST / 1e6:g})")
    for kind, taken in contents(wheel).most_common():
        print(f"  {taken / 1e6:5.2f} MB  {kind}")
    with tempfile.TemporaryDirectory() as folder:
        works = runs_alone(wheel, Path(folder))
    return 0 if works and size <= LARGEST else 1


def contents(wheel: Path) -> Counter[str]:
    taken: Counter[str] = Counter()
    for entry in zipfile.ZipFile(wheel).infolist():
        taken[KINDS.get(Path(entry.filename).suffix, "other")] += entry.compress_size
    return taken


def runs_alone(wheel: Path, folder: Path) -> bool:
    site = folder / "site"
    zipfile.ZipFile(wheel).extractall(site)
    write_weights(folder / "weights.safetensors")
    found = run(["-c", "import torchgauge; print(torchgauge.__file__)"], folder).stdout.strip()
    if not found.startswith(str(site)):
        print(f"torchgauge is imported from {found}")
        return False
    works = True
    for title, arguments in (
        ("python -m torchgauge timm:resnet50", ["-m", "torchgauge", "timm:resnet50"]),
        ("torchgauge weights, without torch", ["-c", WITHOUT_TORCH, "weights", "weights.safetensors"]),
    ):
        done = run(arguments, folder)
        print(f"{title}: {'works' if done.returncode == 0 else f'exit status {done.returncode}'}")
        if done.returncode:
            print(done.stdout[-2000:], done.stderr[-2000:])
            works = False
    return works


def run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(folder / "site"), "TORCHGAUGE_CACHE": str(folder / "cache")}
    return subprocess.run(
        [sys.executable, "-W", "ignore", *arguments], cwd=folder, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def write_weights(path: Path) -> None:
    """A safetensors file with one tensor."""
    header = json.dumps({"layer.weight": {"dtype": "F32", "shape": [64, 32], "data_offsets": [0, 8192]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<2048f", *range(2048)))


if __name__ == "__main__":
    sys.exit(main())
