"""First use in a process: the cost of a command beyond `import torch`, the first analysis against the second, and what
it costs to read a file in a process without rights.

    python benchmarks/first_use.py [--runs 5]

Each figure is the median of fresh processes. The limits: the whole command takes at most twice `import torch`, besides
what timm's own import takes; a first analysis takes below 0.2 s; commands that need no torch start within 0.8 s; a file
takes at most 0.5 s more than if it is read in the process of the command.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

TIMM = """
from torchgauge.source.packages import torchvision_importable
with torchvision_importable():
    import timm
"""
ANALYSIS = """
import time, torch, torchgauge as tg
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU()).eval()
for _ in range(2):
    began = time.perf_counter()
    tg.analyze(model, input_size=(1, 3, 32, 32))
    print(time.perf_counter() - began)
"""
FILES = """
import torch
from torchgauge.analysis import analyze
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU())
torch.save(model.state_dict(), "small.pt")
analyze(model, input_size=(1, 64)).save("run.json")
"""


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


def wall_s(command: list[str], folder: str, runs: int) -> float:
    def once() -> float:
        began = time.perf_counter()
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        return time.perf_counter() - began

    once()  # caches of the disk, of bytecode and of compiled kernels
    return statistics.median(once() for _ in range(runs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    python = [sys.executable, "-W", "ignore"]
    command = [*python, "-m", "torchgauge"]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*python, "-c", FILES], cwd=folder, check=True)
        assert Path(folder, "run.json").exists()
        torch_s = wall_s([*python, "-c", "import torch"], folder, runs)
        timm_s = wall_s([*python, "-c", "import torch" + TIMM], folder, runs) - torch_s
        whole_s = wall_s([*command, "timm:resnet50", "--quiet"], folder, runs)
        print(f"import torch {torch_s:.2f} s, timm besides {timm_s:.2f} s, torchgauge timm:resnet50 {whole_s:.2f} s")
        print(f"  without timm's import: {(whole_s - timm_s) / torch_s:.2f} × import torch (limit 2)")
        times = [
            [float(line) for line in subprocess.run([*python, "-c", ANALYSIS], check=True, capture_output=True,
                                                    text=True).stdout.split()]
            for _ in range(runs)
        ]  # fmt: skip
        first, second = (statistics.median(row[index] for row in times) for index in (0, 1))
        print(f"first analysis {1e3 * first:.0f} ms (limit 200), second {1e3 * second:.1f} ms")
        for name, arguments in (
            ("weights small.pt", ["weights", "small.pt", "--quiet"]),
            ("compare run.json run.json", ["compare", "run.json", "run.json", "--quiet"]),
            ("--help", ["--help"]),
        ):
            print(f"torchgauge {name}: {wall_s([*command, *arguments], folder, runs):.2f} s (limit 0.8)")
        for path in write_files(Path(folder)):
            whole, plain = (
                wall_s([*start, str(path), "--quiet"], folder, runs) for start in (command, [*python, "-c", WITHOUT])
            )
            print(f"torchgauge {path.name}: {whole:.2f} s, read here {plain:.2f} s: {whole - plain:+.2f} s (limit 0.5)")


if __name__ == "__main__":
    main()
