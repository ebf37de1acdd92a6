"""Measuring on a CUDA device: matching kernels with ops, memory, the state after a failure."""

from __future__ import annotations

import dataclasses
import gc
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torchgauge as tg
from tests import zoo
from tests.report.test_trace import assert_is_a_trace
from torchgauge.facts import Capture, View
from torchgauge.hardware import published_peaks
from torchgauge.measure import Budget, MeasurementPlan, Subject, measure, ready
from torchgauge.report import render
from torchgauge.source import Candidate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

CUDA = torch.device("cuda", 0)
QUICK = Budget(seconds=0.3, least=3)
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "fused attention": (zoo.FusedAttention, (2, 16, 32)),
    "LSTM": (lambda: zoo.Recurrent(nn.LSTM, num_layers=2), (5, 3, 12)),
    "convolutions": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 3)),
        (2, 3, 16, 16),
    ),
    "blocks": (
        lambda: nn.Sequential(*(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(6))),
        (8, 64),
    ),
}


def measured(model: nn.Module, x: torch.Tensor, *, train: bool = False) -> tuple[Capture, Any]:
    mode = "train" if train else "inference"
    capture = tg.analyze(model, inputs=x, device="cuda", mode=mode, progress=False).capture
    peaks = published_peaks(torch.cuda.get_device_name())
    with ready(model, Candidate((x,), {}, None), device=CUDA, train=train) as subject:
        found = measure(subject, capture.ops, MeasurementPlan(profile=True, train=train, budget=QUICK, peaks=peaks))
    return capture, found


@pytest.mark.parametrize("name", MODELS)
def test_every_kernel_belongs_to_a_module_and_every_working_op_is_joined(name: str) -> None:
    build, size = MODELS[name]
    capture, found = measured(build().eval(), torch.randn(size))
    assert found.figures["failure"] is None
    device_s = found.figures["profile"]["device_s"]
    assert device_s > 0
    assert sum(row["self_time_s"] for row in found.modules.values()) == pytest.approx(device_s, rel=0.5)
    working = {op.index for op in capture.ops if op.status != "free"}
    assert working <= set(found.ops)
    assert any(found.ops[index]["kernels"] for index in working)
    assert all(row["roof_share"] is None or row["roof_share"] <= 1.5 for row in found.ops.values())


def test_the_sum_over_modules_is_the_sum_over_kernels_of_the_same_runs() -> None:
    from torchgauge.measure import device_module_times, module_paths, profile_runs

    build, size = MODELS["blocks"]
    model, x = build().eval().to(CUDA), torch.randn(size, device=CUDA)
    with torch.no_grad():
        runs = profile_runs(Subject(model, (x,), {}, CUDA).run, module_paths(model), 3, device=CUDA)
    kernels = sum(kernel.duration_ns for run in runs for kernel in run.kernels) / len(runs)
    own = sum(time.self_s for time in device_module_times(runs).values())
    assert own == pytest.approx(kernels * 1e-9, rel=0.03)


def test_a_list_that_is_never_called_has_the_time_of_its_members() -> None:
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    _, found = measured(Listed(), torch.randn(8, 64))
    members = [found.modules[f"layers.{index}"]["time_s"] for index in range(3)]
    assert all(seconds > 0 for seconds in members)
    assert found.modules["layers"]["time_s"] == pytest.approx(sum(members))


def test_memory_is_that_of_the_allocator_and_near_the_prediction() -> None:
    model, x = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 8)).eval(), torch.randn(512, 1024)
    capture, found = measured(model, x)
    memory = found.figures["memory"]
    grown = memory["cuda_allocated_peak_bytes"] - memory["cuda_before_bytes"]
    assert memory["cuda_reserved_peak_bytes"] >= memory["cuda_allocated_peak_bytes"]
    predicted = View(capture).totals.peak_activation_bytes - capture.input_bytes
    # Blocks of 512 bytes, and what cuBLAS keeps for itself.
    assert predicted <= grown <= predicted + 64 * 2**20
    assert memory["allocated_peak_bytes"] >= predicted


def test_a_run_that_needs_too_much_memory_says_so_in_one_sentence() -> None:
    class Hungry(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.new_empty(2**50).add_(1)

    with ready(Hungry(), Candidate((torch.ones(2),), {}, None), device=CUDA) as subject:
        found = measure(subject, (), MeasurementPlan(budget=QUICK))
    assert found.figures["failure"] == "the device ran out of memory: try a smaller batch or a narrower dtype"
    assert found.figures["latency"] is None
    gc.collect()
    assert torch.cuda.memory_allocated() < 2**30


def test_measurements_before_running_out_of_memory_are_kept() -> None:
    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x.new_empty(2**50 if self.calls == 50 else 2)

    with ready(Growing(), Candidate((torch.ones(2),), {}, None), device=CUDA) as subject:
        found: Any = measure(subject, (), MeasurementPlan(budget=Budget(seconds=60, least=1000)))
    assert found.figures["failure"].startswith("the device ran out of memory")
    assert found.figures["latency"]["runs"] > 1


def test_a_training_step_is_timed_by_phase_and_module() -> None:
    build, size = MODELS["blocks"]
    model = build()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    _, found = measured(model, torch.randn(size), train=True)
    assert found.figures["failure"] is None
    assert all(found.figures["phases"][phase] > 0 for phase in ("forward", "backward", "optimizer"))
    assert found.modules["0"]["time_s"] > 0
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_nothing_is_left_attached() -> None:
    build, size = MODELS["convolutions"]
    model, x = build().to(CUDA), torch.randn(size)
    state = _state(model)
    measured(model, x)
    assert _state(model) == state


def _state(model: nn.Module) -> list[Any]:
    return [
        nn.Module.__call__,
        torch.is_grad_enabled(),
        torch.get_num_threads(),
        torch.backends.cudnn.benchmark,
        torch.cuda.get_rng_state().tolist(),
        torch.get_rng_state().tolist(),
        [module.training for module in model.modules()],
        [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()],
        [(value.device, value.flatten().tolist()) for value in model.state_dict().values()],
    ]


@pytest.mark.parametrize("name", MODELS)
def test_the_trace_has_a_device_track_and_keeps_the_rules(name: str) -> None:
    build, size = MODELS[name]
    capture, found = measured(build().eval(), torch.randn(size))
    events = json.loads(render(View(dataclasses.replace(capture, measured=found)), "trace"))["traceEvents"]
    assert_is_a_trace(events)
    kernels = [event for event in events if event.get("cat") == "kernel"]
    assert kernels
    assert {event["pid"] for event in kernels} == {2}
    assert any(event["ph"] == "C" and event["pid"] == 2 for event in events)
    joined = [event["args"]["op"] for event in kernels if "args" in event]
    assert len(joined) >= 0.9 * len(kernels)


def test_the_text_report_shows_device_time_and_idle_time() -> None:
    build, size = MODELS["blocks"]
    capture, found = measured(build().eval(), torch.randn(size))
    text = render(View(dataclasses.replace(capture, measured=found)))
    assert "Measured on cuda:0" in text
    assert "Device idle" in text
    assert "device time of profiled runs" in text


def test_the_hosts_time_is_shown_and_is_not_that_of_the_kernels() -> None:
    def latency(width: int) -> dict[str, Any]:
        model = nn.Linear(width, width, device="cuda")
        x = torch.ones(width, width, device="cuda")
        found = tg.analyze(model, inputs=(x,), device="cuda", inference=True, budget_s=0.5, progress=False)
        assert found.measurements is not None
        return dict(found.measurements["latency"])

    small, large = latency(16), latency(8192)

    assert 0.5 * small["median_s"] < small["host_s"] <= 1.5 * small["median_s"]
    assert large["host_s"] < 0.1 * large["median_s"]
