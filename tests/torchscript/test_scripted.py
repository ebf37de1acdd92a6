from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchgauge as tg
from tests.torchscript.models import (
    Arranged,
    Branching,
    Hybrid,
    Layout,
    Listed,
    Recurrent,
    Shared,
    figures,
    small_resnet,
)

# What torch says of nn.Transformer when it scripts it.
pytestmark = pytest.mark.filterwarnings("ignore:'norm' was found in ScriptModule constants")

CASES: list[Any] = [
    pytest.param(small_resnet, (2, 3, 32, 32), id="resnet"),
    pytest.param(Hybrid, (2, 3, 32, 32), id="hybrid"),
    pytest.param(Listed, (2, 8), id="lists"),
    pytest.param(Shared, (3, 4), id="shared"),
    pytest.param(Recurrent, (2, 3, 4), id="recurrent"),
    pytest.param(lambda: nn.Sequential(nn.Sequential(nn.Linear(2, 2))), (1, 2), id="nested"),
]


def without_peak(analysis: tg.Analysis) -> dict[str, Any]:
    """A graph drops a value after its last use, Python where the function ends: the peaks may differ."""
    peaks = ("peak_activation_bytes", "total_bytes")
    return {name: value for name, value in analysis.totals.items() if name not in peaks}


@pytest.mark.parametrize("mode", ["inference", "train"])
@pytest.mark.parametrize(("build", "size"), CASES)
def test_a_scripted_model_has_the_figures_of_the_eager_one(build: Any, size: tuple[int, ...], mode: str) -> None:
    model = build()
    eager = tg.analyze(model, input_size=size, mode=mode)
    scripted = tg.analyze(torch.jit.script(model), input_size=size, mode=mode)
    assert figures(scripted) == figures(eager)
    assert without_peak(scripted) == without_peak(eager)
    assert scripted.capture.run.mode == "fake"


def test_the_result_does_not_change_from_run_to_run() -> None:
    model = torch.jit.script(Hybrid())
    runs = [tg.analyze(model, input_size=(1, 3, 32, 32)) for _ in range(4)]
    for again in runs[1:]:
        assert [(op.op, op.module, op.live_bytes) for op in again.ops] == [
            (op.op, op.module, op.live_bytes) for op in runs[0].ops
        ]


@pytest.mark.parametrize("form", ["live", "loaded"])
def test_real_runs_before_change_nothing(form: str, tmp_path: Any) -> None:
    """The executor of torch rewrites what it runs after the first times."""
    model = torch.jit.script(Branching().eval())
    if form == "loaded":
        torch.jit.save(model, tmp_path / "model.pt")
        model = torch.jit.load(tmp_path / "model.pt")
    before = tg.analyze(model, input_size=(3, 4))
    for _ in range(4):
        model(torch.randn(3, 4))
    after = tg.analyze(model, input_size=(3, 4))
    assert (after.ops, after.modules, after.totals) == (before.ops, before.modules, before.totals)


def test_control_flow_runs_the_branches_that_are_taken() -> None:
    model = torch.jit.script(Branching())
    taken = {row.path: (row.calls, row.macs) for row in tg.analyze(model, input_size=(3, 4)).modules}
    assert taken == {"": (1, 5 * 48), "layer": (4, 4 * 48), "other": (1, 48)}
    given = tg.analyze(model, inputs=(torch.ones(3, 4),), kwargs={"extra": 2})
    assert {row.path: row.calls for row in given.modules} == {"": 1, "layer": 4, "other": 0}
    halvings = [op for op in given.ops if op.op == "aten::div"]
    assert len(halvings) == 0 + 1 + 2


def test_attributes_set_by_a_method_are_restored() -> None:
    model = torch.jit.script(Branching())
    tg.analyze(model, input_size=(3, 4))
    assert model.steps == 0


def test_structured_outputs_are_described() -> None:
    record = tg.analyze(torch.jit.script(Branching()), input_size=(3, 4)).capture.modules[0]
    first, named, outcome = record.outputs
    assert first.shape == (3, 4)
    assert named["stacked"].shape == (3, 3, 4)
    assert outcome[1] == 3


def test_a_failed_assertion_names_the_model_and_says_what_it_said() -> None:
    with pytest.raises(tg.ForwardError, match=r"2×2×4 float32: .*two dimensions"):
        tg.analyze(torch.jit.script(Branching()), input_size=(2, 2, 4))


def test_a_wrong_shape_names_the_inner_module() -> None:
    with pytest.raises(tg.ForwardError, match=r"'first\.0' \(Linear\) raised, given 2×5 float32"):
        tg.analyze(torch.jit.script(Shared()), input_size=(2, 5))


def test_ops_know_the_line_they_come_from_and_keep_it_when_saved(tmp_path: Any) -> None:
    found = tg.analyze(torch.jit.script(Listed()), input_size=(2, 8))
    sources = {op["source"].rpartition("/")[2].partition(":")[0] for op in found.ops if op.op == "aten::gelu"}
    assert sources == {"models.py"}
    found.save(tmp_path / "run.json")
    assert [op.source for op in tg.load(tmp_path / "run.json").ops] == [op.source for op in found.ops]


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 8)
        self.part = torch.jit.script(Listed())

    def forward(self, x: Tensor) -> Tensor:
        return self.part(self.stem(x))


def test_a_scripted_part_of_an_eager_model_has_its_inner_modules() -> None:
    found = figures(tg.analyze(Mixed(), input_size=(2, 8)))
    alone = figures(tg.analyze(Listed(), input_size=(2, 8)))
    assert {path.removeprefix("part."): row for path, row in found.items() if path.startswith("part.")} == {
        path: row for path, row in alone.items() if path
    }


class Drops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.drop(x) * 2


def test_the_mode_of_the_run_is_the_mode_of_the_model() -> None:
    model = torch.jit.script(Drops())
    assert [op.op for op in tg.analyze(model, input_size=(2, 2)).ops] == ["aten::mul"]
    with pytest.raises(tg.InputError, match="nothing to train"):  # the graph's own no_grad holds
        tg.analyze(model, input_size=(2, 2), mode="train")
    assert model.training


class Saves(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        torch.save(x, "canary")
        return x


def test_a_live_scripted_model_does_not_write_files(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(tg.ForwardError, match="aten::save"):
        tg.analyze(torch.jit.script(Saves()), input_size=(2,))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("output", "macs"), [(Layout.FIRST, 2 * 32), (Layout.LAST, 2 * (32 + 64))])
def test_an_enum_of_a_file_is_compared_by_its_names(
    output: Layout, macs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted = torch.jit.script(Arranged(output))
    assert tg.analyze(scripted, input_size=(2, 4)).totals.macs == macs
    scripted.save(tmp_path / "model.pt")
    # As in a process that has not scripted the class.
    monkeypatch.setattr(torch.jit._state, "_name_to_pyclass", {})
    assert tg.analyze(tmp_path / "model.pt", input_size=(2, 4)).totals.macs == macs
    assert tg.analyze(tmp_path / "model.pt").totals.macs == macs // 2  # the input is found in the graph
    assert tg.analyze(torch.jit.load(tmp_path / "model.pt"), input_size=(2, 4)).totals.macs == macs


def test_an_enum_of_a_file_does_not_reach_a_class_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.jit.script(Arranged(Layout.LAST)).save(tmp_path / "model.pt")
    asked: list[str] = []

    class Watched:
        def __getattribute__(self, name: str) -> Any:
            asked.append(name)
            return object.__getattribute__(self, name)

    name = f"__torch__.{Layout.__module__}.{Layout.__qualname__}"
    assert name in torch.jit._state._name_to_pyclass
    monkeypatch.setattr(torch.jit._state, "_name_to_pyclass", {name: Watched()})
    assert tg.analyze(tmp_path / "model.pt", input_size=(2, 4)).totals.macs == 2 * (32 + 64)
    assert asked == []


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(64, 64))
        self.gain = nn.Parameter(torch.rand(64, 1))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.gain * self.weight)


@pytest.mark.parametrize("make", [torch.jit.script, lambda model: torch.jit.trace(model, torch.ones(2, 64))])
def test_a_weight_that_a_script_computes_in_every_call_is_advised_against(make: Any) -> None:
    model = nn.Sequential(Weighted(), nn.Linear(64, 64)).eval()
    found = tg.analyze(make(model), input_size=(2, 64))
    assert found.capture.run.warnings == ()
    assert "recomputed-weight" in {row["rule"] for row in found.advice}
