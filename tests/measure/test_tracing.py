"""Traces of real profiled runs on the CPU."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import torch
from torch import nn

import torchgauge as tg
from tests.report.test_trace import assert_is_a_trace
from torchgauge.facts import Measured, View
from torchgauge.measure import join, module_paths, profile_runs, trace_of
from torchgauge.report import render

MODELS: dict[str, tuple[nn.Module, torch.Tensor]] = {
    "convolutions": (nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval(), torch.randn(2, 3, 8, 8)),
    "lstm": (nn.LSTM(8, 16, 2), torch.randn(5, 2, 8)),
    "encoder": (nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval(), torch.randn(2, 5, 16)),
}


def traced(model: nn.Module, x: torch.Tensor) -> View:
    capture = tg.analyze(model, inputs=x).capture
    device = torch.device("cpu")
    with torch.no_grad():
        run = profile_runs(lambda: model(x), module_paths(model), 1, device=device, memory=True)[-1]
    return View(dataclasses.replace(capture, measured=Measured({}, trace=trace_of(run, join(capture.ops, run)))))


@pytest.mark.parametrize("name", MODELS)
def test_a_real_run_is_a_trace_in_which_every_op_is_inside_its_module(name: str) -> None:
    view = traced(*MODELS[name])
    found = json.loads(render(view, "trace"))["traceEvents"]
    assert_is_a_trace(found)
    modules = [event for event in found if event.get("cat") == "module"]
    seen = [event for event in found if "op" in event.get("args", {})]
    assert [event["args"]["op"] for event in seen] == [op.index for op in view.capture.ops]
    for event in seen:
        around = [module for module in modules if _inside(event, module)]
        assert around[-1]["name"].startswith(event["args"]["module"])


def _inside(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    return bool(outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"])


def test_the_memory_counter_peaks_where_the_allocations_do() -> None:
    model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 8)).eval()
    x = torch.randn(32, 64)
    view = traced(model, x)
    held = [event["args"]["bytes"] for event in json.loads(render(view, "trace"))["traceEvents"] if event["ph"] == "C"]
    assert max(held) == view.totals.peak_activation_bytes - x.nbytes


@pytest.mark.slow
def test_a_model_of_ten_thousand_ops_stays_below_50_mb() -> None:
    layers = [nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3_334)]
    view = traced(nn.Sequential(*layers).eval(), torch.randn(1, 8))
    assert view.totals.ops >= 10_000
    assert len(render(view, "trace").encode()) < 50_000_000
