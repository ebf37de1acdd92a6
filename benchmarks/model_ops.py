"""Ops inside models on the CPU: predicted time against measured time, by kind of op and for whole runs.

    python benchmarks/model_ops.py [resnet18 convnext_atto …] [-o ops.json]

Models of timm with random weights. One thread and processor time, the median of several runs; memory is kept by the
process. Where `cpu_ops.py` repeats an
op on tensors that are in the caches, here each op runs between the others of its model. Calls of a few microseconds
are measured with the cost of the mode that times them, so look at kinds of op that take a good share of a run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections import defaultdict
from math import exp, log
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import torchgauge as tg
from torchgauge.advise.op_time import predicted_times
from torchgauge.source.packages import import_optional

MODELS = (
    "resnet18", "mobilenetv3_small_100", "convnext_atto", "vit_tiny_patch16_224", "swin_tiny_patch4_window7_224",
    "efficientnet_b0", "mixer_s32_224", "regnety_002", "densenet121", "hrnet_w18_small", "pvt_v2_b0", "levit_128s",
)  # fmt: skip
KEPT = {"MALLOC_TRIM_THRESHOLD_": str(2**31 - 1), "MALLOC_MMAP_MAX_": "0"}
RUNS = 7


class Timed(TorchDispatchMode):
    """The name and the seconds of each op, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[tuple[str, float]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        start = time.thread_time()
        made = func(*args, **(kwargs or {}))
        self.ops.append((func._schema.name, time.thread_time() - start))
        return made


def compare(name: str) -> dict[str, Any]:
    torch.manual_seed(0)
    model = import_optional("timm", "the benchmark").create_model(name).eval()
    images = torch.randn(1, 3, 224, 224)
    capture = tg.analyze(model, inputs=(images,), advice=False, progress=False).capture
    module_calls = sum(record.calls for record in capture.modules)
    seconds = predicted_times(capture.ops, None, "cpu", 1, None, module_calls=module_calls)
    runs, whole = [], []
    with torch.no_grad():
        for turn in range(RUNS + 2):
            start = time.process_time()
            model(images)
            if turn > 1:
                whole.append(time.process_time() - start)
                with Timed() as mode:
                    model(images)
                runs.append(mode.ops)
    ops: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for op in capture.ops:
        ops[op.op][0] += seconds[op.index]
    for calls in zip(*runs, strict=True):
        ops[calls[0][0]][1] += statistics.median(each for _, each in calls)
    return {
        "model": name,
        "predicted_s": sum(seconds.values()),
        "measured_s": statistics.median(whole),
        "ops": {kind: pair for kind, pair in ops.items() if all(pair)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("-o", dest="output", type=Path)
    options = parser.parse_args()
    if not KEPT.items() <= os.environ.items():  # glibc reads them when a process starts
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | KEPT)
    torch.set_num_threads(1)
    rows = []
    print("| model | predicted | measured | ratio |\n|---|---|---|---|")
    for name in options.models:
        rows.append(row := compare(name))
        ratio = row["predicted_s"] / row["measured_s"]
        print(
            f"| {name} | {row['predicted_s'] * 1e3:.1f} ms | {row['measured_s'] * 1e3:.1f} ms | {ratio:.2f} |",
            flush=True,
        )
    kinds: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        for kind, (predicted, measured) in row["ops"].items():
            kinds[kind].append((measured / row["measured_s"], log(predicted / measured)))
    print("\n| op | models | mean share | ratio, weighted by share |\n|---|---|---|---|")
    for kind, pairs in sorted(kinds.items(), key=lambda item: -sum(share for share, _ in item[1]))[:20]:
        whole = sum(share for share, _ in pairs)
        ratio = exp(sum(share * error for share, error in pairs) / whole)
        print(f"| {kind.removeprefix('aten::')} | {len(pairs)} | {whole / len(rows):.1%} | {ratio:.2f} |")
    errors = [abs(log(row["predicted_s"] / row["measured_s"])) for row in rows]
    print(f"\n{len(rows)} models, mean error {exp(statistics.mean(errors)) - 1:.0%}")
    if options.output:
        options.output.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
