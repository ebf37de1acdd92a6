"""`--verify` against an independent A/B timing of everything it keeps.

    python benchmarks/verify.py [--device cuda] [--only gpt2] [--seconds 6] [-o results.json]
    python benchmarks/verify.py --again results.json [--device cuda]

Five models with random weights. Each kept recommendation, and the plan, is applied once more by the code that the
verification gives, and timed against the original by torch's `benchmark.Timer`, in four rounds spread over time. The
reported gain must agree with that timing within the two intervals, and nothing that is kept may lose time; the exit
status is 1 where one of them does not hold. Prints Markdown tables. `--again` is a second process, started later: it
builds the models anew and times what an earlier one confirmed; a gain holds where its interval is above zero here too.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import math
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import tables
import torch
import torch._dynamo
from judging import Verdict
from subjects import FirstOutput, torchvision, transformers
from torch import Tensor, nn
from torch.utils.benchmark import Timer

import torchgauge as tg

Inputs = tuple[Tensor, ...]
Timing = tuple[float, tuple[float, float]]
TIME = "time_s"
LEAST_PAIRS, RESAMPLED, ROUNDS, SAMPLE_S = 12, 2000, 4, 10e-3
MEMORY = ("param_bytes", "stored_bytes", "peak_activation_bytes")


class Lstm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5000, width)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True)
        self.head = nn.Linear(width, 5000)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.lstm(self.embedding(ids))[0])
        return logits


@dataclass(frozen=True, slots=True)
class Check:
    """One that was kept: what was reported, and what the other timer says."""

    model: str
    rules: str
    quantity: str
    gain: float
    ci95: tuple[float, float]
    independent: float | None
    independent_ci95: tuple[float, float] | None
    relative_error: float | None
    code: str | None = None
    batch_factor: int = 1

    @property
    def agrees(self) -> bool:
        if self.independent_ci95 is None:
            return True
        return self.ci95[0] <= self.independent_ci95[1] and self.independent_ci95[0] <= self.ci95[1]

    @property
    def loses_time(self) -> bool:
        return self.quantity == TIME and self.independent_ci95 is not None and self.independent_ci95[1] < 0


def models(device: str) -> dict[str, Callable[[], tuple[nn.Module, Inputs]]]:
    """Smaller on the CPU: each is run some thousand times."""
    is_large = device.startswith("cuda")
    size, depth, batch = (768, 12, 8) if is_large else (256, 4, 1)
    gpt2 = transformers.GPT2Config(n_embd=size, n_layer=depth, n_head=size // 64, vocab_size=5000)
    bert = transformers.BertConfig(
        hidden_size=size, num_hidden_layers=depth, num_attention_heads=size // 64, intermediate_size=4 * size
    )
    ids = torch.randint(0, 1000, (batch, 128), generator=torch.Generator().manual_seed(0))
    images = torch.randn(batch, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    return {
        "resnet50": lambda: (torchvision.models.resnet50(), (images,)),
        "mobilenet_v3": lambda: (torchvision.models.mobilenet_v3_large(), (images,)),
        "gpt2": lambda: (FirstOutput(transformers.GPT2LMHeadModel(gpt2)), (ids,)),
        "bert": lambda: (FirstOutput(transformers.BertModel(bert)), (ids,)),
        "lstm": lambda: (Lstm(size), (ids,)),
    }


def main() -> int:
    options = _parse()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.again:
        return time_again(json.loads(options.again.read_text(encoding="utf-8"))["checks"], options)
    checks: list[Check] = []
    for name, build in models(options.device).items():
        if not options.only or name in options.only:
            torch.manual_seed(0)
            model, inputs = build()
            model = model.eval().to(options.device)
            placed = tuple(tensor.to(options.device) for tensor in inputs)
            checks += examine(name, model, placed, options)
    verdicts = judged(checks)
    print(f"\n## kept\n\n{kept_table(checks)}\n\n## verdict\n\n{tables.verdicts(verdicts)}")
    if options.output:
        document = {"checks": [asdict(check) for check in checks], "verdicts": [asdict(v) for v in verdicts]}
        options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0 if all(verdict.passed for verdict in verdicts) else 1


def time_again(confirmed: Sequence[Mapping[str, Any]], options: argparse.Namespace) -> int:
    """What an earlier process confirmed, on models of this one."""
    rows, holding = [], 0
    wanted = [row for row in confirmed if row["quantity"] == TIME and row["code"]]
    for name, build in models(options.device).items():
        own = [row for row in wanted if row["model"] == name]
        if not own:
            continue
        torch.manual_seed(0)
        model, inputs = build()
        model, placed = model.eval().to(options.device), tuple(tensor.to(options.device) for tensor in inputs)
        for row in own:
            fed = tuple(torch.cat([tensor] * row["batch_factor"]) for tensor in placed)
            found = timing(row, model, fed, placed, options.seconds)
            holds = found is not None and found[1][0] > 0
            holding += holds
            again = ("-", "-") if found is None else (percent(found[0]), span(found[1]))
            rows.append([name, row["rules"], percent(row["gain"]), span(row["ci95"]), *again, "yes" if holds else "NO"])
    header = ["model", "advice", "confirmed gain", "interval", "second process", "its interval", "holds"]
    print(tables.table(header, rows))
    print(f"\n{holding} of {len(rows)} confirmed gains hold in a second process")
    return 0 if holding == len(rows) else 1


def examine(name: str, model: nn.Module, inputs: Inputs, options: argparse.Namespace) -> list[Check]:
    begin = perf_counter()
    settings: dict[str, Any] = {"device": options.device, "verify": True, "weights": False, "progress": False}
    found = tg.analyze(model, inputs=inputs, profile=True, budget_s=options.profile_seconds, **settings)
    print(f"\n## {name}: {perf_counter() - begin:.0f} s\n\n{advice_table(found.advice)}", flush=True)
    for tried in (found.plan or {}).get("tried", ()):
        print(f"- tried together: {', '.join(tried['rules'])}: {tried['reason'] or percent(tried['gain']) + ' more'}")
    return list(checked(name, model, inputs, found, options.seconds))


def checked(name: str, model: nn.Module, inputs: Inputs, found: tg.Analysis, seconds: float) -> Iterator[Check]:
    kept = {_key(row.verified, row.rule): row for row in found.advice if row.verified and row.verified["kept"]}
    jobs = [(row.rule, row.verified, batched(inputs, row)) for row in kept.values()]
    if found.plan is not None and found.plan["rules"] and _key(found.plan, "") not in kept:
        jobs.append(("plan: " + ", ".join(found.plan["rules"]), found.plan | {"quantity": TIME}, inputs))
    rounds = [
        [timing(figures, model, fed, inputs, seconds / ROUNDS) for _, figures, fed in jobs] for _ in range(ROUNDS)
    ]
    for (rules, figures, fed), timings in zip(jobs, zip(*rounds, strict=True), strict=True):
        found = check(name, rules, figures, timings)
        yield replace(found, code=figures["code"], batch_factor=len(fed[0]) // len(inputs[0]))


def _key(figures: Mapping[str, Any], rule: str) -> str:
    """Rules that say the same are one."""
    return figures["code"] or rule


def batched(inputs: Inputs, row: Mapping[str, Any]) -> Inputs:
    """What advice on the batch is for."""
    if row["rule"] != "batch-at-knee":
        return inputs
    factor = row["evidence"]["knee_batch"] // row["evidence"]["batch"]
    return tuple(torch.cat([tensor] * factor) for tensor in inputs)


def check(name: str, rules: str, figures: Mapping[str, Any], timings: Sequence[Timing | None]) -> Check:
    """The rounds span the interval: a machine may keep another pace for seconds on end."""
    reported = (name, rules, figures["quantity"], figures["gain"], tuple(figures["ci95"]))
    relative = figures["output_error"]["relative"]
    known = [timing for timing in timings if timing is not None]
    if not known:
        return Check(*reported, None, None, relative)
    lows, highs = zip(*(interval for _, interval in known), strict=True)
    return Check(*reported, median(gain for gain, _ in known), (min(lows), max(highs)), relative)


def timing(figures: Mapping[str, Any], model: nn.Module, fed: Inputs, inputs: Inputs, seconds: float) -> Timing | None:
    """One round of an A/B timing; None for what is advised for memory."""
    if figures["quantity"] in MEMORY:
        return None
    before = _flags()
    gc.collect()  # an earlier graph that goes away amid the capture of another would spoil it
    duplicate = copy.deepcopy(model).to(inputs[0].device)  # which puts an LSTM's weights in one piece again
    changed, flags = optimised(duplicate, figures["code"], inputs)
    try:
        ratios = side_by_side((model, inputs, before), (changed, fed, flags), seconds)
    finally:
        _set_flags(before)
        torch._dynamo.reset()
    return independent_gain(ratios, len(fed[0]) / len(inputs[0]))


def optimised(model: nn.Module, code: str | None, inputs: Inputs) -> tuple[nn.Module, tuple[int, str]]:
    before = _flags()
    if code is None:
        return model, before
    scope: dict[str, Any] = {}
    exec(code, scope)
    model = scope["optimise"](model, *(inputs if "*inputs" in code else ()))
    flags = _flags()
    _set_flags(before)
    return model.eval(), flags


Side = tuple[nn.Module, Inputs, tuple[int, str]]


def side_by_side(first: Side, second: Side, seconds: float) -> list[tuple[float, float]]:
    """The two in turns."""
    timers = [sampler(side) for side in (first, second)]
    pairs: list[tuple[float, float]] = []
    begin = perf_counter()
    while len(pairs) < LEAST_PAIRS or perf_counter() - begin < seconds:
        times = [0.0, 0.0]
        for at in (0, 1) if len(pairs) % 2 else (1, 0):
            times[at] = timers[at]()
        pairs.append((times[0], times[1]))
    return pairs


def sampler(side: Side) -> Callable[[], float]:
    """Seconds of one call in a sample of several, which follow two that do not count."""
    model, inputs, flags = side
    timer = Timer("call(model, inputs)", globals={"call": call, "model": model, "inputs": inputs}, num_threads=flags[0])

    def sample(number: int) -> float:
        _set_flags(flags)
        return float(timer.timeit(number).mean)

    number = max(1, math.ceil(SAMPLE_S / min(sample(1) for _ in range(3))))
    return lambda: sample(number)


def call(model: nn.Module, inputs: Inputs) -> None:
    with torch.no_grad():
        model(*inputs)
    if inputs[0].is_cuda:
        torch.cuda.synchronize()


def independent_gain(pairs: Sequence[tuple[float, float]], work: float) -> Timing:
    """From the ratio of the medians; the interval is the middle 95 % of the same over resampled pairs."""
    draw = random.Random(0)
    drawn = sorted(_saved(draw.choices(pairs, k=len(pairs)), work) for _ in range(RESAMPLED))
    return _saved(pairs, work), (drawn[int(0.025 * RESAMPLED)], drawn[int(0.975 * RESAMPLED)])


def _saved(pairs: Sequence[tuple[float, float]], work: float) -> float:
    return 1 - median(after for _, after in pairs) / work / median(before for before, _ in pairs)


def _flags() -> tuple[int, str]:
    return torch.get_num_threads(), torch.get_float32_matmul_precision()


def _set_flags(flags: tuple[int, str]) -> None:
    torch.set_num_threads(flags[0])
    torch.set_float32_matmul_precision(flags[1])


def judged(checks: Sequence[Check]) -> list[Verdict]:
    timed_checks = [check for check in checks if check.quantity == TIME]
    agree = sum(check.agrees for check in timed_checks)
    losing = [f"{check.model} {check.rules}" for check in checks if check.loses_time]
    count = len(timed_checks)
    return [
        Verdict("the reported gain agrees with an independent timing", f"{agree} of {count}", agree == count),
        Verdict("nothing that is kept loses time", ", ".join(losing) or "none does", not losing),
    ]


def advice_table(rows: Sequence[Mapping[str, Any]]) -> str:
    return tables.table(["rule", "kept", "gain", "interval", "output error", "reason"], [_cells(row) for row in rows])


def _cells(row: Mapping[str, Any]) -> list[str]:
    figures = row.get("verified")
    if figures is None:
        return [row["rule"], "-", "-", "-", "-", row["unverified"]]
    error = figures["output_error"]["relative"]
    reported = "-" if error is None else f"{error:.1e}"
    kept = "yes" if figures["kept"] else "no"
    return [row["rule"], kept, percent(figures["gain"]), span(figures["ci95"]), reported, figures["reason"] or ""]


def kept_table(checks: Sequence[Check]) -> str:
    header = ["model", "advice", "of", "gain", "interval", "independent", "its interval", "agrees"]
    rows = [
        [
            check.model,
            check.rules,
            check.quantity,
            percent(check.gain),
            span(check.ci95),
            percent(check.independent),
            span(check.independent_ci95),
            "yes" if check.agrees else "NO",
        ]
        for check in checks
    ]
    return tables.table(header, rows)


def percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.1f} %"


def span(interval: Sequence[float] | None) -> str:
    return "-" if interval is None else f"{percent(interval[0])} to {percent(interval[1])}"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", action="append", help="repeatable: resnet50, mobilenet_v3, gpt2, bert, lstm")
    parser.add_argument("--seconds", type=float, default=6.0, help="for each independent timing")
    parser.add_argument("--verify-seconds", type=float, help="for each measurement of the verification")
    parser.add_argument("--threads", type=int, help="of torch: fewer on a machine that others use")
    parser.add_argument("--profile-seconds", type=float, default=2.0)
    parser.add_argument("-o", dest="output", type=Path, help="write the results as JSON")
    parser.add_argument("--again", type=Path, metavar="FILE", help="time once more what FILE has as confirmed")
    options = parser.parse_args()
    if options.verify_seconds:
        os.environ["TORCHGAUGE_VERIFY_BUDGET"] = str(options.verify_seconds)
    return options


if __name__ == "__main__":
    sys.exit(main())
