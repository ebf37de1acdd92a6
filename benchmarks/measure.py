"""Measured runs: the parts against the whole, the headline against a plain loop, the sampler on against off.

    python benchmarks/measure.py [-o results.json] [--seconds S] [--threads N] [--only cpu|cuda]

Prints Markdown tables and a verdict on every limit; the exit status is 1 where one is broken. What is compared is taken
in turns. The CUDA part runs where there is a device.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from judging import Verdict
from subjects import SEQUENCE, of_torchvision, of_transformers
from subjects import Subject as Model
from tables import table, verdicts
from torch import Tensor, nn
from turns import Ratio, headline_over_plain, sampler_on_over_off

import torchgauge as tg
from torchgauge.hardware import collect_environment
from torchgauge.measure import Budget, Subject, ready
from torchgauge.measure.measuring import MeasurementPlan, measure
from torchgauge.source import Candidate

MODULES = (0.92, 1.03)
OVER_PLAIN = 0.02
SAMPLER = 0.01
OF_KERNELS = 0.03
# A limit of 2 % means little where the ratio is known to that only.
QUIET = 0.015
LLAMA = {
    "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128_256,
}  # fmt: skip


class LastOutput(nn.Module):
    """An LSTM as part of a model: its outputs, without the state."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(256, 512, num_layers=2, batch_first=True)
        self.head = nn.Linear(512, 64)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.lstm(x)
        logits: Tensor = self.head(outputs)
        return logits


RESNET = of_torchvision("resnet50")
VIT = of_torchvision("vit_b_16")
GPT2 = of_transformers("gpt2", transformers.GPT2LMHeadModel, transformers.GPT2Config)
BERT = of_transformers("bert", transformers.BertModel, transformers.BertConfig)
LSTM = Model("lstm", LastOutput, lambda: (torch.randn(8, 64, 256),))
LLAMA_1B = of_transformers("llama-1b bf16", transformers.LlamaForCausalLM, partial(transformers.LlamaConfig, **LLAMA))
ON_CPU = (RESNET, GPT2, BERT, LSTM)
ON_CUDA = (RESNET, VIT, GPT2, LLAMA_1B)
# The sampler does the same work whatever runs: next to arithmetic, and next to much Python.
SAMPLED = (RESNET, GPT2)
WHOLE_S = 5.0


@dataclass(frozen=True, slots=True)
class Result:
    """`modules`: the sum of their own times, of the undisturbed median (CPU) or of the time of all kernels (CUDA)."""

    model: str
    device: str
    median_s: float
    modules: Ratio
    headline: Ratio
    sampler: Ratio | None
    sampler_cpu_share: float | None
    joined: str


def main() -> int:
    options = _parse()
    torch.set_num_threads(options.threads)
    results: list[Result] = []
    for kind in options.only or ("cpu", "cuda"):
        if kind == "cuda" and not torch.cuda.is_available():
            print("\n## cuda\n\nno device here")
            continue
        found = [
            measure_one(model, torch.device(kind), options.seconds) for model in (ON_CPU if kind == "cpu" else ON_CUDA)
        ]
        print(f"\n## {kind}\n\n{_device_name(kind)}\n\n{results_table(found)}", flush=True)
        results += found
    judged = [verdict for result in results for verdict in judge(result)]
    print(f"\n## verdict\n\n{verdicts(judged)}")
    if options.output:
        document = {"results": [asdict(row) for row in results], "verdicts": [asdict(item) for item in judged]}
        options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0 if all(verdict.passed for verdict in judged) else 1


def measure_one(model: Model, device: torch.device, seconds: float) -> Result:
    print(f"… {model.name} on {device}", file=sys.stderr, flush=True)
    dtype = torch.bfloat16 if model is LLAMA_1B else None
    with built(model, device, dtype) as (subject, ops):
        # Every turn begins with a collection, which would go through all that the packages hold.
        gc.collect()
        gc.freeze()
        whole = measure(subject, ops, MeasurementPlan(profile=True, budget=Budget(seconds=WHOLE_S)))
        if whole.figures["failure"]:
            raise RuntimeError(f"{model.name}: {whole.figures['failure']}")
        own = sum(row["self_time_s"] for row in whole.modules.values())
        profile = whole.figures["profile"]
        median_s = whole.figures["latency"]["median_s"]
        modules = Ratio(own / (median_s if device.type == "cpu" else profile["device_s"]), 0.0, 1)
        headline = headline_over_plain(subject, seconds)
        sampler, share = sampler_on_over_off(subject, seconds) if model in SAMPLED else (None, None)
    joined = f"{profile['joined_ops']}/{profile['static_ops']}"
    return Result(model.name, device.type, median_s, modules, headline, sampler, share, joined)


@contextmanager
def built(model: Model, device: torch.device, dtype: torch.dtype | None) -> Iterator[tuple[Subject, Any]]:
    """The model on the device with real parameters, and its static ops there."""
    torch.manual_seed(0)
    with device:
        real, args = model.build().eval(), model.inputs()
    found = tg.analyze(real, inputs=args, dtype=dtype, device=str(device), progress=False)
    target = torch.device("cuda", 0) if device.type == "cuda" else device
    with ready(real.to(dtype), Candidate(args, {}, None), device=target, dtype=dtype) as subject:
        yield subject, found.capture.ops


def judge(result: Result) -> list[Verdict]:
    """A ratio passes if it is within its limit or not distinguishable from one that is; so is the resolution."""
    name = f"{result.model} on {result.device}"
    low, high = MODULES if result.device == "cpu" else (1 - OF_KERNELS, 1 + OF_KERNELS)
    whole = "the undisturbed median" if result.device == "cpu" else "the time of all kernels"
    worst = max(result.modules.error, result.headline.error)
    judged = [
        Verdict(
            f"{name}: modules' own times {low:g} to {high:g} of {whole}",
            str(result.modules),
            result.modules.lies_within(low, high),
        ),
        Verdict(
            f"{name}: headline within {OVER_PLAIN:.0%} of a plain loop",
            str(result.headline),
            result.headline.lies_within(1 - OVER_PLAIN, 1 + OVER_PLAIN),
        ),
        Verdict(f"{name}: quiet enough for a verdict (errors at most {QUIET:.1%})", f"{worst:.2%}", worst <= QUIET),
    ]
    return judged + (judge_sampler(name, result.sampler, result.sampler_cpu_share or 0.0) if result.sampler else [])


def judge_sampler(name: str, ratio: Ratio, share: float) -> list[Verdict]:
    limit = f"{name}: the sampler adds less than {SAMPLER:.0%}, and takes less of a core"
    passed = ratio.lies_within(0, 1 + SAMPLER) and share < SAMPLER
    return [Verdict(limit, f"{ratio}, {share:.2%}", passed)]


def results_table(results: list[Result]) -> str:
    header = ["model", "median ms", "modules / whole", "headline / plain", "sampler on / off", "its CPU time", "joined"]
    cells = [
        [
            row.model,
            f"{row.median_s * 1e3:.2f}",
            *(str(ratio or "") for ratio in (row.modules, row.headline, row.sampler)),
            "" if row.sampler_cpu_share is None else f"{row.sampler_cpu_share:.2%}",
            row.joined,
        ]
        for row in results
    ]
    return table(header, cells)


def _device_name(kind: str) -> str:
    environment = collect_environment()
    name = torch.cuda.get_device_name() if kind == "cuda" else f"{environment.cpu}, {torch.get_num_threads()} threads"
    return f"{name}, torch {environment.torch}, sequence {SEQUENCE} where there is one"


def _threads() -> int:
    return max(1, min(4, (os.cpu_count() or 1) // 2))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Compare the measured parts with the whole, and the whole with a loop."
    )
    parser.add_argument("-o", "--output", type=Path, help="write the results as JSON")
    parser.add_argument("--seconds", type=float, default=8.0, help="the most that a comparison takes")
    parser.add_argument("--threads", type=int, default=_threads(), help="fewer than the cores: others need some too")
    parser.add_argument("--only", action="append", choices=("cpu", "cuda"), help="a part; may be repeated")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
