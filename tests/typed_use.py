"""A user's program, which `mypy --strict` accepts without any settings (tests/test_typing.py)."""

from __future__ import annotations

from pathlib import Path

import torch

import torchgauge as tg
from torchgauge import Call, Work, formula


@formula("typed_use::scaled_sum", category="reduction")
def cost_of_scaled_sum(call: Call) -> Work:
    elements = call["x"].numel
    return Work(macs=0, flops=2 * elements)


def report(model: torch.nn.Module, folder: Path) -> tuple[int, float]:
    """MACs, and seconds of a run on an H200."""
    try:
        found: tg.Analysis = tg.analyze(model, input_size=(1, 3, 224, 224), progress=False)
    except tg.TorchgaugeError as error:
        raise SystemExit(str(error)) from error
    for row in found.modules:
        print(row.path, row.macs, row["params"])
    for advice in found.advice:
        print(advice.rule, advice.recommendation)
    found.save(folder / "model.json")
    again = tg.load(folder / "model.json")
    change: tg.Comparison = tg.compare(found, again)
    print(change.render("md"))
    macs = found.totals.macs
    return (macs or 0), seconds(model)


def seconds(model: torch.nn.Module) -> float:
    predicted = tg.forecast(model, on="h200", input_size=(1, 3, 224, 224))
    fitting = tg.fit(model, on="l4", input_size=(1, 3, 224, 224))
    if isinstance(predicted, tg.Forecast) and isinstance(fitting, tg.Fit):
        print(fitting.verdict, fitting.required_bytes)
        return predicted.time_s
    return 0.0


def largest(path: str) -> str:
    scan: tg.WeightScan = tg.scan_weights(path)
    return str(max(scan.to_dict()["weights"], key=lambda row: row["elements"])["path"])


def tokens_per_second(config: str) -> float:
    language: tg.Llm = tg.llm(config)
    step = language.decode(2048, on="h200")
    return 1 / step.time_s if step.time_s else 0.0
