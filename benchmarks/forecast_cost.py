"""The cost of a forecast compared with the static analysis: processor time in one process, the least of several rounds.

    python benchmarks/forecast_cost.py [--turns 5]

The aim is 1: a forecast takes no more than the analysis does. The first turn, which loads tables and code, does not
count.
"""

from __future__ import annotations

import argparse
import gc
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from fit_configurations import Configuration, build
from forecast_models import PROOF, PROOF_TRAINING

import torchgauge as tg
from torchgauge.source.packages import import_optional

NAMES = (
    "resnet50 fp32 b64", "densenet169 fp32 b16", "vit_base_patch16_224 bf16 b64",
    "swin_small_patch4_window7_224 fp32 b16", "bert-large bf16 b16 s512", "gpt2-medium bf16 b4 s512",
    "qwen2-1.5b bf16 b2 s512", "unet fp32 b8", "resnet50 train fp32 b32", "vit_base_patch16_224 train bf16 b64",
    "gpt2-medium train bf16 b4 s512",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    import_optional("timm", "measuring")
    print("| model | analysis, ms | forecast, ms | ratio |")
    print("|---|---|---|---|")
    for configuration in (one for one in (*PROOF, *PROOF_TRAINING) if one.name in NAMES):
        analysis_s, forecast_s = costs(configuration, args.turns)
        cells = (
            configuration.name,
            f"{analysis_s * 1e3:.0f}",
            f"{forecast_s * 1e3:.0f}",
            f"{forecast_s / analysis_s:.2f}",
        )
        print("| " + " | ".join(cells) + " |", flush=True)
    return 0


def costs(configuration: Configuration, turns: int) -> tuple[float, float]:
    with torch.device("meta"):
        model = build(configuration)
        given = configuration.inputs()
    options = dict(configuration.options)
    dtype, mode = options.get("dtype"), configuration.mode
    shown: dict[str, Any] = {
        "inputs": given["args"] or given["kwargs"],
        "dtype": dtype,
        "mode": mode,
        "progress": False,
    }
    runs: tuple[Callable[[], Any], ...] = (
        lambda: tg.analyze(model, advice=False, weights=False, **shown),
        lambda: tg.forecast(model, on="h200", **shown),
    )
    best = [float("inf"), float("inf")]
    for turn in range(turns + 1):
        for place, run in enumerate(runs):
            gc.collect()
            started = time.process_time()
            run()
            if turn:
                best[place] = min(best[place], time.process_time() - started)
    return best[0], best[1]


if __name__ == "__main__":
    raise SystemExit(main())
