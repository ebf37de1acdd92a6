"""`--inference` on a CUDA device: every kind of target, out of memory, what is left behind."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchgauge as tg
from torchgauge.cli import main

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

QUICK: dict[str, Any] = {"budget_s": 0.3, "weights": False, "progress": False}
SIZE = (4, 3, 32, 32)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(3))
        self.register_buffer("shift", torch.ones(16), persistent=False)

    shift: torch.Tensor

    def forward(self, x: torch.Tensor) -> Any:
        x = torch.relu(self.first(x)).mean((2, 3))
        for block in self.blocks:
            x = x + block(x)
        return x + self.shift


class Hungry(nn.Module):
    """Takes a quarter of a terabyte for every sample beyond the second."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 2:
            x = x + torch.zeros(1 << 36, device=x.device)[0]
        return x + 1


def targets(folder: Path) -> dict[str, Any]:
    model, x = Net().eval(), torch.randn(SIZE)
    program = torch.export.export(model, (x,))
    torch.export.save(program, folder / "net.pt2")
    torch.jit.trace(model, x).save(str(folder / "net.pt"))
    return {"module": model, "exported": program, "pt2": folder / "net.pt2", "script": folder / "net.pt"}


@pytest.mark.parametrize("kind", ["module", "exported", "pt2", "script"])
def test_device_time_of_the_modules_is_that_of_the_kernels(tmp_path: Path, kind: str) -> None:
    target = targets(tmp_path)[kind]
    given: dict[str, Any] = {} if kind in ("exported", "pt2") else {"input_size": SIZE}
    found: Any = tg.analyze(target, device="cuda", inference=True, profile_level="ops", **given, **QUICK)
    figures = found.measurements
    assert figures["failure"] is None
    own = sum(row.self_time_s or 0.0 for row in found.modules)
    assert own == pytest.approx(figures["profile"]["device_s"], rel=0.1)
    assert {row.path for row in found.modules if row.time_s} >= {"", "first", "blocks.0.0", "blocks.2.2"}


def test_a_training_step_has_its_backward_kernels_in_the_modules() -> None:
    found: Any = tg.analyze(
        Net(), input_size=SIZE, device="cuda", mode="train", inference=True, profile_level="ops", **QUICK
    )
    figures = found.measurements
    assert figures["failure"] is None
    assert set(figures["phases"]) == {"forward", "backward", "optimizer"}
    own = sum(row.self_time_s or 0.0 for row in found.modules)
    assert own == pytest.approx(figures["profile"]["device_s"], rel=0.1)
    assert figures["module_phases"]["first"]["backward"] > 0


def test_a_model_on_the_device_is_measured_there() -> None:
    model = Net().cuda()
    found: Any = tg.analyze(model, input_size=SIZE, inference=True, **QUICK).measurements
    assert found["failure"] is None
    assert found["device"] == "cuda:0"
    assert next(model.parameters()).is_cuda


def test_out_of_memory_keeps_the_static_figures_and_frees_the_device() -> None:
    gc.collect()  # models of other tests
    before = torch.cuda.memory_allocated()
    found: Any = tg.analyze(Hungry(), input_size=(3, 4), device="cuda", inference=True, **QUICK)
    assert "ran out of memory" in found.measurements["failure"]
    assert found.totals.flops > 0
    assert torch.cuda.memory_allocated() == before


def test_a_point_of_a_sweep_that_runs_out_of_memory_leaves_the_others() -> None:
    found: Any = tg.analyze(
        Hungry(), input_size=(1, 4), device="cuda", sweep="batch=1,3,2", profile_level="latency", **QUICK
    ).measurements
    assert found["failure"] is None
    assert [row["failure"] is None for row in found["sweep"]] == [True, False, True]


def test_the_memory_fraction_holds_and_is_given_back() -> None:
    read = getattr(torch.cuda, "get_per_process_memory_fraction", lambda: 1.0)
    before = read()
    state = torch.cuda.get_rng_state()
    found: Any = tg.analyze(
        nn.Linear(1 << 14, 1 << 14),
        input_size=(1, 1 << 14),
        device="cuda",
        inference=True,
        memory_fraction=0.001,
        **QUICK,
    ).measurements
    assert "ran out of memory" in found["failure"]
    assert read() == before
    assert torch.equal(torch.cuda.get_rng_state(), state)
    torch.zeros(1 << 28, device="cuda")


def test_a_profile_has_the_device_in_its_system(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("from torch import nn\ndef build(): return nn.Linear(512, 512)\n")
    words = [
        f"{tmp_path / 'net.py'}:build",
        "--device",
        "cuda",
        "--profile",
        "--batch",
        "64",
        "--budget",
        "2",
        "--json",
    ]
    assert main(words) == 0
    measured = json.loads(capsys.readouterr().out)["measurements"]
    assert any(name.startswith("cuda") for name in measured["system"]["quantities"])
    assert "scaling" not in measured["threads"]


def test_a_device_beyond_the_last_is_one_message_with_the_static_figures(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "net.py").write_text("from torch import nn\ndef build(): return nn.Linear(8, 8)\n")
    assert main([f"{tmp_path / 'net.py'}:build", "--device", "cuda:15", "--inference", "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["totals"]["macs"] == 64
    assert "cuda:15" in err
    assert err.count("\n") == 1
