"""The option `freed-memory`: predicted gain against the gain of keeping freed memory in the process.

    python benchmarks/freed_memory.py [resnet18 convnext_tiny …] [--turns 2] [-o run.json]

Each run is a process with one thread on one model of timm with random weights: its processor time, the median of eight
forward passes, and its page faults. Runs with the C library's defaults and with the variables of the option take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

KEPT = {"MALLOC_TRIM_THRESHOLD_": "2147483647", "MALLOC_MMAP_MAX_": "0"}
MODELS = (
    "resnet18", "resnet50", "mobilenetv3_large_100", "efficientnet_b0", "convnext_tiny", "vit_small_patch16_224",
    "swin_tiny_patch4_window7_224", "densenet121", "regnety_016", "mixer_s32_224", "pvt_v2_b1", "hrnet_w18",
)  # fmt: skip
BATCH, RUNS = 4, 8


def build(name: str) -> tuple[Any, Any]:
    import torch

    from torchgauge.source.packages import import_optional

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = import_optional("timm", "the benchmark").create_model(name).eval()
    return model, torch.randn(BATCH, 3, 224, 224)


def measure(name: str) -> None:
    """In a process of its own."""
    import torch

    model, images = build(name)
    seconds, faults = [], 0
    with torch.inference_mode():
        for turn in range(RUNS + 3):
            before, start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.process_time()
            model(images)
            if turn >= 3:
                seconds.append(time.process_time() - start)
                faults += resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    print(json.dumps({"seconds": statistics.median(seconds), "faults": faults / RUNS}))


def run(name: str, variables: dict[str, str]) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", name]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(name: str, turns: int) -> dict[str, Any]:
    import torchgauge as tg

    model, images = build(name)
    options = tg.analyze(model, inputs=(images,), progress=False).options
    gain = next((row.expected_gain for row in options if row.rule == "freed-memory"), None)
    runs = [(run(name, {}), run(name, KEPT)) for _ in range(turns)]
    saved = statistics.median(1 - kept["seconds"] / default["seconds"] for default, kept in runs)
    expected = None if gain is None else (gain["low"], gain["high"])
    is_held = expected is not None and expected[0] - 0.005 <= saved <= expected[1] + 0.005
    return {"model": name, "expected": expected, "saved": saved, "held": is_held, "runs": runs}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("-o", dest="output", type=Path)
    options = parser.parse_args()
    if options.child:
        measure(options.child)
        return 0
    print("| model | expected | saved | page faults a run, kept |\n|---|---|---|---|")
    rows = []
    for name in options.models:
        row = compare(name, options.turns)
        expected = "not shown" if row["expected"] is None else "{:.0%} to {:.0%}".format(*row["expected"])
        default, kept = row["runs"][0]
        print(
            f"| {name} | {expected} | {row['saved']:.1%} | {default['faults']:.0f}, {kept['faults']:.0f} |", flush=True
        )
        rows.append(row)
    shown = [row for row in rows if row["expected"]]
    print(f"\nwithin the range: {sum(row['held'] for row in shown)} of {len(shown)}")
    if options.output:
        options.output.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
