"""Energy on a CUDA device: a run against a plain loop that reads the counter, the modules against the whole.

    PYTHONPATH=src:. python benchmarks/energy.py [-o results.json] [--seconds S] [--parts S] [--only NAME]

Prints Markdown tables and a verdict on every limit; the exit status is 1 where one is broken. About five minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch
import transformers
from judging import Verdict
from subjects import of_torchvision, of_transformers
from tables import table, verdicts
from torch import Tensor, nn

import torchgauge as tg
from torchgauge.energy.energy_window import Effort
from torchgauge.energy.measuring import EnergyPlan, measure_run
from torchgauge.measure import Subject, ready
from torchgauge.measure.absence import Absent
from torchgauge.measure.nvml import Device
from torchgauge.measure.readings import nvml_device
from torchgauge.source import Candidate

OF_PLAIN = 0.05
OF_WHOLE = 0.10
CUDA = torch.device("cuda", 0)
LLAMA = {
    "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128_256,
}  # fmt: skip


class Model(NamedTuple):
    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]
    dtype: torch.dtype | None = None


def images(batch: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 3, 224, 224),)


def sequences(batch: int, length: int) -> tuple[Tensor, ...]:
    return (torch.randint(0, 1000, (batch, length)),)


GPT2 = of_transformers("gpt2", transformers.GPT2LMHeadModel, transformers.GPT2Config).build
LLAMA_1B = of_transformers("llama-1b", transformers.LlamaForCausalLM, partial(transformers.LlamaConfig, **LLAMA)).build
# Batches that keep the device busy, and one model that waits for its launches.
MODELS = (
    Model("resnet50 fp32, batch 64", of_torchvision("resnet50").build, partial(images, 64)),
    Model("vit_b_16 fp32, batch 64", of_torchvision("vit_b_16").build, partial(images, 64)),
    Model("gpt2 fp32, batch 8 × 512", GPT2, partial(sequences, 8, 512)),
    Model("llama-1b bf16, batch 4 × 512", LLAMA_1B, partial(sequences, 4, 512), torch.bfloat16),
    Model("gpt2 fp32, batch 1 × 128", GPT2, partial(sequences, 1, 128)),
)
# Those of the target; the others are shown, and judged where they are asked for.
DEFAULT = tuple(model.name for model in MODELS[:4])


@dataclass(frozen=True, slots=True)
class Result:
    """Joules and seconds of one run; `modules_j` is the root module's, the sum of all ops."""

    model: str
    joules: float
    ci95_j: list[float] | None
    net_joules: float
    plain_j: float
    plain_s: float
    modules_j: float
    watts_mean: float
    watts_peak: float
    idle_watts: float
    flops_per_joule: float
    temperature_c: float
    attribution: dict[str, Any]
    notes: list[str]
    took_s: float


def main() -> int:
    options = _parse()
    if not torch.cuda.is_available():
        print("no CUDA device here")
        return 1
    results = [measure_one(model, options) for model in MODELS if model.name in (options.only or DEFAULT)]
    judged = [verdict for result in results for verdict in judge(result)]
    print(f"## {torch.cuda.get_device_name()}, torch {torch.__version__}\n\n{whole_table(results)}")
    print(f"\n{parts_table(results)}")
    for result in results:
        print(f"\n### {result.model}: kinds of ops that were run alone\n\n{kinds_table(result)}")
    print(f"\n## verdict\n\n{verdicts(judged)}")
    if options.output:
        document = {"results": [asdict(row) for row in results], "verdicts": [asdict(item) for item in judged]}
        options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0 if all(verdict.passed for verdict in judged) else 1


def measure_one(model: Model, options: argparse.Namespace) -> Result:
    print(f"… {model.name}", file=sys.stderr, flush=True)
    begin = perf_counter()
    torch.manual_seed(0)
    with CUDA:
        real, args = model.build().eval().to(model.dtype), model.inputs()
    ops = tg.analyze(real, inputs=args, dtype=model.dtype, device="cuda", progress=False).capture.ops
    order = EnergyPlan(Effort(budget_s=options.budget), parts_s=options.parts)
    with ready(real, Candidate(args, {}, None), device=CUDA, dtype=model.dtype) as subject:
        facts = measure_run(subject, ops, order)
        plain_j, plain_s = plain_loop(subject, options.seconds)
    found: Any = facts.figures
    if found["origin"] != "measured" or not facts.modules:
        raise RuntimeError(f"{model.name}: {found['reason'] or found['attribution']}")
    return Result(
        model=model.name,
        plain_j=plain_j,
        plain_s=plain_s,
        modules_j=facts.modules[""]["energy_j"],
        temperature_c=found["thermal"]["temperature_c"]["last"],
        took_s=perf_counter() - begin,
        **{name: found[name] for name in ("joules", "ci95_j", "net_joules", "watts_mean", "watts_peak")},
        **{name: found[name] for name in ("idle_watts", "flops_per_joule", "attribution", "notes")},
    )


def plain_loop(subject: Subject, seconds: float) -> tuple[float, float]:
    """What anyone would write: the counter before and after, over as many runs as fit; joules and seconds of one."""
    with nvml_device(0) as device:
        if isinstance(device, Absent):
            raise RuntimeError(device.reason)
        runs, before, begin = 0, _energy(device), perf_counter()
        while perf_counter() - begin < seconds:
            subject.run()
            runs += 1
        return (_energy(device) - before) / runs, (perf_counter() - begin) / runs


def _energy(device: Device) -> float:
    found = device.energy_j()
    if isinstance(found, Absent):
        raise RuntimeError(found.reason)
    return found


def judge(result: Result) -> list[Verdict]:
    plain = result.joules / result.plain_j - 1
    parts = result.modules_j / result.joules - 1
    return [
        Verdict(
            f"{result.model}: within {OF_PLAIN:.0%} of a plain loop over the counter",
            f"{plain:+.2%}",
            abs(plain) <= OF_PLAIN,
        ),
        Verdict(
            f"{result.model}: modules add up to the whole within {OF_WHOLE:.0%}",
            f"{parts:+.2%}",
            abs(parts) <= OF_WHOLE,
        ),
    ]


def whole_table(results: list[Result]) -> str:
    header = ["model", "J per run", "95 %", "plain J", "net J", "W mean", "W peak", "W idle", "GFLOP/J", "°C", "s"]
    cells = [
        [
            row.model,
            f"{row.joules:.4g}",
            "–".join(f"{bound:.4g}" for bound in row.ci95_j or ()),
            f"{row.plain_j:.4g}",
            f"{row.net_joules:.4g}",
            f"{row.watts_mean:.0f}",
            f"{row.watts_peak:.0f}",
            f"{row.idle_watts:.0f}",
            f"{row.flops_per_joule / 1e9:.1f}",
            f"{row.temperature_c:.0f}",
            f"{row.took_s:.0f}",
        ]
        for row in results
    ]
    return table(header, cells)


def parts_table(results: list[Result]) -> str:
    header = ["model", "modules / whole", "time run alone", "W waiting", "ms per run", "ms busy", "refused", "notes"]
    cells = [
        [
            row.model,
            f"{row.modules_j / row.joules:.3f}",
            f"{row.attribution['replayed_time_share']:.0%}",
            f"{row.attribution['waiting_watts']:.0f}",
            f"{row.plain_s * 1e3:.2f}",
            f"{row.attribution['busy_s'] * 1e3:.2f}",
            ", ".join(f"{item['op']}: {item['reason']}" for item in row.attribution["refused"]) or "none",
            "; ".join(row.notes) or "none",
        ]
        for row in results
    ]
    return table(header, cells)


def kinds_table(result: Result) -> str:
    header = ["op", "inputs", "calls", "µs in the model", "µs alone", "W", "mJ added", "graph"]
    cells = [
        [
            kind["op"],
            " ".join("×".join(map(str, shape)) for shape in kind["input_shapes"][:3]),
            str(kind["calls"]),
            f"{kind['time_s'] * 1e6:.1f}",
            f"{kind['replayed_s'] * 1e6:.1f}",
            f"{kind['watts']:.0f}",
            f"{kind['added_j'] * 1e3:.3g}",
            "yes" if kind["is_graph"] else "no",
        ]
        for kind in result.attribution["kinds"]
    ]
    return table(header, cells)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare measured energy with the counter, and the parts with it.")
    parser.add_argument("-o", "--output", type=Path, help="write the results as JSON")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long the plain loop runs")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds for the trials of a model")
    parser.add_argument("--parts", type=float, default=25.0, help="seconds for running ops alone")
    names = [model.name for model in MODELS]
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help=f"one of: {'; '.join(names)}")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
