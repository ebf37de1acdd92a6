"""`analyze(…, inference=True)` for everything that can be run."""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchgauge as tg
from torchgauge.measure import align
from torchgauge.source import AS_BUILT, load_real_model, resolve

QUICK: dict[str, Any] = {"budget_s": 0.05, "threads": 1, "weights": False}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.GELU()) for _ in range(2))
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("shift", torch.tensor([0.5, 1.5]), persistent=False)

    shift: torch.Tensor

    def forward(self, x: torch.Tensor) -> Any:
        x = torch.relu(self.first(x)).mean((2, 3))
        for block in self.blocks:
            x = x + block(x)
        left, right = x.split(2, 1)
        return left * self.scale, right + self.shift


X = torch.randn(2, 3, 8, 8)
PATHS = {"", "first", "blocks", "blocks.0", "blocks.0.0", "blocks.0.1", "blocks.1", "blocks.1.0", "blocks.1.1"}


def exported(folder: Path) -> str:
    path = str(folder / "net.pt2")
    torch.export.save(torch.export.export(Net().eval(), (X,)), path)
    return path


def traced(folder: Path) -> str:
    path = str(folder / "net.pt")
    with torch.no_grad():
        torch.jit.trace(Net().eval(), X).save(path)
    return path


def check(found: Any) -> None:
    """Every part is there, and they agree."""
    figures = found.measurements
    assert figures["failure"] is None
    assert found.totals.time_s == figures["latency"]["median_s"] > 0
    timed = {row.path: row for row in found.modules if row.time_s is not None}
    assert set(timed) == PATHS
    assert timed[""].time_s == pytest.approx(sum(row.self_time_s for row in timed.values()))
    assert timed["blocks"].time_s == pytest.approx(timed["blocks.0"].time_s + timed["blocks.1"].time_s)
    assert all(row.time_s > 0 for row in found.ops)


def test_a_live_module_is_measured_with_all_its_parts() -> None:
    found = tg.analyze(Net(), inputs=X, inference=True, profile_level="ops", **QUICK)
    check(found)
    assert found.measurements is not None
    assert found.measurements["settings"] == {
        "threads": 1, "memory_fraction": None, "budget_s": 0.05, "profile_level": "ops"
    }  # fmt: skip
    assert found.measurements["system"] is None
    assert found.measurements["sweep"] == []


def test_without_a_request_nothing_is_measured() -> None:
    found = tg.analyze(Net(), inputs=X)
    assert found.measurements is None
    assert found.totals.time_s is None


@pytest.mark.parametrize("save", [exported, traced])
def test_modules_inside_a_program_have_the_times_of_their_ops(tmp_path: Path, save: Any) -> None:
    found = tg.analyze(save(tmp_path), input_size=X.shape, inference=True, profile_level="ops", **QUICK)
    check(found)
    by_module: dict[str, float] = {}
    for op in found.ops:
        by_module[op.module] = by_module.get(op.module, 0.0) + op["time_s"]
    for row in found.modules:
        if row.path.startswith("blocks") and row.time_s:
            assert row.self_time_s == pytest.approx(by_module.get(row.path, 0.0))


def test_a_live_exported_program_is_measured() -> None:
    program = torch.export.export(Net().eval(), (X,))
    check(tg.analyze(program, inference=True, profile_level="ops", **QUICK))


def test_an_archive_is_run_with_its_own_values(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Net().eval()
    path = str(tmp_path / "net.pt2")
    torch.export.save(torch.export.export(model, (X,)), path)
    made = load_real_model(resolve(path))
    with torch.no_grad():
        for found, expected in zip(made.model(X), model(X), strict=True):
            assert torch.equal(found, expected)


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


def test_a_program_with_branches_is_measured() -> None:
    program = torch.export.export(Branching(), (torch.ones(3),))
    found: Any = tg.analyze(program, inference=True, **QUICK).measurements
    assert found["failure"] is None


def test_code_in_a_file_says_whose_weights_they_are(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("from torch import nn\ndef build(): return nn.Linear(3, 4)\n")
    found: Any = tg.analyze(f"{tmp_path / 'net.py'}:build", inference=True, **QUICK).measurements
    assert found["failure"] is None
    assert AS_BUILT in found["notes"]


def test_a_compiled_model_is_measured_without_its_wrapper_where_eager_is_asked_for() -> None:
    compiled: Any = torch.compile(nn.Linear(3, 4))
    found: Any = tg.analyze(compiled, inference=True, execution="eager", **QUICK).measurements
    assert found["failure"] is None
    assert "measured without its OptimizedModule wrapper" in found["notes"]


def test_a_training_step_has_phases_by_module() -> None:
    found: Any = tg.analyze(Net(), inputs=X, mode="train", inference=True, profile_level="ops", **QUICK)
    figures = found.measurements
    assert figures["failure"] is None
    assert set(figures["module_phases"]["first"]) >= {"forward", "backward"}
    # AdamW keeps two values of every parameter, and a count of the steps in float32.
    parameters = list(Net().parameters())
    assert figures["memory"]["optimizer_state_bytes"] == sum(2 * p.nbytes + 4 for p in parameters)
    assert "Optimizer state" in str(found)
    joined = {phase for op in found.ops if op.time_s is not None for phase in [op.phase]}
    assert joined == {"forward", "backward", "optimizer"}
    backward = [op for op in found.ops if op.phase == "backward" and op.module == "first" and op.time_s is not None]
    assert figures["module_phases"]["first"]["backward"] == pytest.approx(sum(op.time_s for op in backward))


def test_weights_without_code_keep_what_is_known_and_say_what_is_missing(tmp_path: Path) -> None:
    torch.save({"some.weight": torch.ones(3)}, tmp_path / "weights.pt")
    found = tg.analyze(tmp_path / "weights.pt", inference=True, **QUICK)
    assert found.totals.params == 3
    assert found.measurements is not None
    assert "--as" in found.measurements["failure"]


def test_a_model_without_values_keeps_its_static_figures_and_says_why() -> None:
    with torch.device("meta"):
        model = nn.Linear(3, 4)
    found = tg.analyze(model, inference=True, **QUICK)
    assert found.totals.macs == 12
    assert found.measurements is not None
    assert "meta device" in found.measurements["failure"]
    assert "meta device" in str(found)


class Failing(nn.Module):
    """Raises in a given real run."""

    def __init__(self, run: int, error: type[BaseException]) -> None:
        super().__init__()
        self.runs = [0, run]
        self.error = error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if type(x) is torch.Tensor:
            self.runs[0] += 1
            if self.runs[0] >= self.runs[1]:
                raise self.error("out of luck")
        return x + 1


@pytest.mark.parametrize(
    ("error", "text"), [(ValueError, "ValueError: out of luck"), (KeyboardInterrupt, "interrupted")]
)
def test_a_failure_in_the_fifth_run_keeps_the_four_before(error: type[BaseException], text: str) -> None:
    call, threads = nn.Module.__call__, torch.get_num_threads()
    model = Failing(5, error)
    # The budget is not reached: a busy machine would make fewer runs in a short one.
    found = tg.analyze(model, inputs=torch.ones(3), inference=True, profile=True, **QUICK | {"budget_s": 600.0})
    assert found.measurements is not None
    assert found.measurements["failure"] == text
    assert found.measurements["latency"]["runs"] == 3
    assert found.measurements["latency"]["cold_s"] > 0
    assert model.runs == [0, 5]
    assert model.training
    assert nn.Module.__call__ is call
    assert torch.get_num_threads() == threads
    assert not [thread for thread in threading.enumerate() if "torchgauge" in thread.name]


class Late(nn.Module):
    """Raises once somebody has replaced the class-wide call: in the runs for the modules."""

    def __init__(self) -> None:
        super().__init__()
        self.plain: Any = nn.Module.__call__

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if type(x) is torch.Tensor and nn.Module.__call__ is not self.plain:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return x + 1


def test_a_failure_in_a_later_part_keeps_the_parts_before() -> None:
    call = nn.Module.__call__
    found: Any = tg.analyze(Late(), inputs=torch.ones(3), inference=True, **QUICK)
    assert found.measurements["failure"].startswith("the device ran out of memory")
    assert found.totals.time_s == found.measurements["latency"]["median_s"] > 0
    assert found.modules[0].time_s is None
    assert nn.Module.__call__ is call


def test_a_profile_has_the_system_and_the_counters() -> None:
    found: Any = tg.analyze(nn.Linear(3, 4), profile=True, **QUICK).measurements
    assert found["failure"] is None
    assert "rss_bytes" in found["system"]["quantities"]
    assert found["counters"]["theoretical_flops"] == 2 * 12 + 4
    assert found["settings"]["profile_level"] == "ops"


def test_measurements_survive_being_saved(tmp_path: Path) -> None:
    found = tg.analyze(Net(), inputs=X, profile=True, sweep="batch=1,2", **QUICK)
    found.save(tmp_path / "run.json")
    again = tg.load(tmp_path / "run.json")
    assert json.dumps(again.to_dict()) == json.dumps(found.to_dict())
    assert str(again) == str(found)


@pytest.mark.parametrize(
    ("wanted", "found", "pairs"),
    [
        ("abc", "abc", {0: 0, 1: 1, 2: 2}),
        ("abc", "xaxbxc", {0: 1, 1: 3, 2: 5}),
        ("azbc", "abcz", {0: 0, 2: 1, 3: 2}),
        ("", "abc", {}),
        ("abc", "", {}),
        ("a", "bcd", {}),
    ],
)
def test_ops_are_aligned_so_that_the_most_agree(wanted: str, found: str, pairs: dict[int, int]) -> None:
    assert align(list(wanted), list(found)) == pairs


def test_long_sequences_are_aligned_in_blocks() -> None:
    generator = random.Random(0)
    names = [f"op{generator.randrange(20)}" for _ in range(3_000)]
    missing = [name for name in names if generator.random() < 0.9]
    pairs = align(names, missing, block=500)
    assert len(pairs) == len(missing)
    assert all(names[i] == missing[j] for i, j in pairs.items())
    assert list(pairs) == sorted(pairs)


class Leaving(nn.Linear):
    """Ends the process, or asks for more memory than there is, when it is run for real."""

    def __init__(self, *, leaves: bool) -> None:
        super().__init__(3, 3)
        self.leaves = leaves

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.leaves and type(x) is torch.Tensor:
            raise SystemExit(7)
        return super().forward(x).repeat(1, 1 if self.leaves else 10**14)


@pytest.mark.parametrize(
    ("leaves", "failure"), [(True, "SystemExit: 7"), (False, "the machine ran out of memory: try a smaller batch")]
)
def test_a_model_that_leaves_or_takes_all_memory_is_a_failure_with_every_member(leaves: bool, failure: str) -> None:
    found: Any = tg.analyze(Leaving(leaves=leaves), input_size=(2, 3), inference=True, **QUICK).measurements
    assert found["failure"].startswith(failure)
    members = {"latency", "memory", "unexplained_s", "threads", "system", "counters", "sweep"}
    assert members <= found.keys()
    assert (found["memory"], found["sweep"]) == (None, [])
