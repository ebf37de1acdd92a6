"""The cost of reading a file in a process without rights, compared with reading it in this one.

    python benchmarks/isolation.py [--runs 10]

Alternating runs on the same files; the limit is half a second more for an ordinary file. Commands are fresh processes.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch
from torch import nn

import torchgauge as tg

WITHOUT = """
import sys
from unittest import mock
from torchgauge.cli import main
with mock.patch("torchgauge.analysis.isolated.needs_isolation", lambda *_: False), \\
     mock.patch("torchgauge.analysis.pipeline.needs_isolation", lambda *_: False):
    sys.exit(main(sys.argv[1:]))
"""


def write_files(folder: Path) -> list[Path]:
    blocks = [nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()) for _ in range(16)]
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).eval()
    example = torch.zeros(1, 64, 16, 16)
    paths = [folder / name for name in ("weights.pt", "script.pt", "program.pt2")]
    torch.save(model.state_dict(), paths[0])
    torch.jit.trace(model, example).save(paths[1])
    torch.export.save(torch.export.export(model, (example,)), paths[2])
    return paths


def alternating(runs: int, *works: Callable[[], object]) -> list[float]:
    """The median seconds of each."""
    times: list[list[float]] = [[] for _ in works]
    for number in range(runs + 1):
        for work, taken in zip(works, times, strict=True):
            began = time.perf_counter()
            work()
            if number:  # the first run fills caches
                taken.append(time.perf_counter() - began)
    return [statistics.median(taken) for taken in times]


def read_here(path: Path) -> None:
    with mock.patch("torchgauge.analysis.pipeline.needs_isolation", return_value=False):
        tg.analyze(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        for path in write_files(Path(folder)):
            isolated, plain = alternating(runs, lambda path=path: tg.analyze(path), lambda path=path: read_here(path))
            print(
                f"tg.analyze({path.name}): {isolated:.3f} s, without isolation {plain:.3f} s: {isolated - plain:+.3f} s"
            )
            commands = ([sys.executable, "-m", "torchgauge"], [sys.executable, "-c", WITHOUT])
            isolated, plain = alternating(
                max(runs // 2, 1),
                *(lambda command=command, path=path: subprocess.run([*command, str(path), "--quiet"], check=True)
                  for command in commands),
            )  # fmt: skip
            taken = f"{isolated:.2f} s, without {plain:.2f} s: {isolated - plain:+.2f} s (limit 0.5)"
            print(f"  torchgauge {path.name}: {taken}")


if __name__ == "__main__":
    main()
