"""The parts of a run: closed forms of the sharing, and ops of real models run again by themselves."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from time import perf_counter
from typing import Any

import pytest
import torch
from torch import nn

import torchgauge as tg
from tests import zoo
from torchgauge.energy import (
    BY_TIME,
    JOULES,
    REPLAYED,
    Collector,
    Effort,
    EnergyPlan,
    EnergyWindow,
    FunctionMeter,
    OpGroup,
    Play,
    Reading,
    Replayed,
    Whole,
    attribute,
    collect,
    heavy_op_groups,
    key_of,
    measure_run,
    meters_of,
    op_groups_of,
    prepare,
    tokens_per_run,
)
from torchgauge.facts import Capture, OpRecord, View, capture_from_document
from torchgauge.measure import Absent, OpTime, inclusive_sums, ready
from torchgauge.source import Candidate

CPU = torch.device("cpu")


def blocks() -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)) for _ in range(3))).eval()


def seen(model: nn.Module, x: torch.Tensor) -> Capture:
    return tg.analyze(model, inputs=x, progress=False).capture


def timed(ops: tuple[OpRecord, ...], seconds: float, idle_s: float = 0.0) -> dict[int, OpTime]:
    return {op.index: OpTime(seconds, seconds, idle_s, ()) for op in ops}


def kinds(ops: tuple[OpRecord, ...], seconds: float = 1.0) -> list[OpGroup]:
    return op_groups_of(ops, timed(ops, seconds))


def use_only(monkeypatch: pytest.MonkeyPatch, name: str, find: Any) -> None:
    """The registered meters are loaded first: later they would register in the replaced registry."""
    with meters_of("cpu"):
        monkeypatch.setattr("torchgauge.energy.meter.FINDERS", {name: find})


def test_equal_calls_are_one_kind() -> None:
    ops = seen(blocks(), torch.randn(4, 8)).ops
    calls = {(kind.key[0], kind.key[3]): len(kind.indices) for kind in kinds(ops)}
    assert calls[("aten::addmm", ((4, 16), "float32"))] == 3
    assert calls[("aten::addmm", ((4, 8), "float32"))] == 3
    assert sum(calls.values()) == sum(op.status != "free" for op in ops)


def test_the_heaviest_come_first_until_their_share_is_reached() -> None:
    found = [OpGroup((name, "", (), None), (0,), seconds) for name, seconds in (("a", 6.0), ("b", 3.0), ("c", 1.0))]
    assert [kind.key[0] for kind in heavy_op_groups(found, share=0.8, most=9)] == ["a", "b"]
    assert [kind.key[0] for kind in heavy_op_groups(found, share=0.8, most=1)] == ["a"]
    assert heavy_op_groups(found, share=0.8, most=0) == []


def test_the_parts_of_a_device_that_adds_up_explain_the_whole() -> None:
    """100 W of waiting for 10 s, and 200 W more while each of the ops runs (1 s)."""
    ops = seen(blocks(), torch.randn(4, 8)).ops
    times = timed(ops, 1.0)
    whole = Whole(joules=100 * 30.0 + 200 * len(ops), seconds=30.0, busy_s=float(len(ops)), waiting_w=100.0)
    replayed = [Replayed(kind, EnergyWindow(300.0, 1.0, 1)) for kind in kinds(ops)]
    found = attribute(ops, times, whole, replayed)
    assert found.figures["method"] == REPLAYED
    assert found.figures["explained_share"] == pytest.approx(1.0)
    assert found.figures["residue_j"] == pytest.approx(0.0, abs=1e-9)
    assert sum(found.ops.values()) == pytest.approx(whole.joules)
    assert found.modules[""] == pytest.approx(whole.joules)


def test_unexplained_energy_is_shown() -> None:
    ops = seen(blocks(), torch.randn(4, 8)).ops
    whole = Whole(joules=1000.0, seconds=float(len(ops)), busy_s=float(len(ops)), waiting_w=10.0)
    replayed = [Replayed(kind, EnergyWindow(20.0, 1.0, 1)) for kind in kinds(ops)]
    found = attribute(ops, timed(ops, 1.0), whole, replayed)
    assert found.figures["residue_j"] == pytest.approx(1000.0 - 20.0 * len(ops))
    assert found.figures["explained_share"] == pytest.approx(20.0 * len(ops) / 1000.0)


def test_light_ops_add_as_much_per_second_as_the_heavy_ones() -> None:
    ops = seen(blocks(), torch.randn(4, 8)).ops
    heavy = kinds(ops)[0]
    whole = Whole(joules=1.0, seconds=float(len(ops)), busy_s=float(len(ops)), waiting_w=10.0)
    found = attribute(ops, timed(ops, 1.0), whole, [Replayed(heavy, EnergyWindow(60.0, 2.0, 2))])
    assert set(found.ops.values()) == {10.0 + 20.0}


def test_a_loop_that_waits_for_its_launches_is_not_charged_twice() -> None:
    """Three quarters of the loop are waiting: what the op adds is the rest, whatever the loop's pace."""
    kind = OpGroup(("op", "", (), None), (0,), 1.0)
    tight, slow = Replayed(kind, EnergyWindow(300.0, 1.0, 1)), Replayed(kind, EnergyWindow(300.0 + 3 * 100.0, 4.0, 1))
    assert tight.added_each_j(100.0) == slow.added_each_j(100.0) == 200.0


def test_time_in_which_nothing_runs_goes_to_whom_the_device_waited_for() -> None:
    ops = seen(blocks(), torch.randn(4, 8)).ops[:2]
    times = {ops[0].index: OpTime(1.0, 1.0, 3.0, ()), ops[1].index: OpTime(1.0, 1.0, 1.0, ())}
    whole = Whole(joules=100.0, seconds=10.0, busy_s=2.0, waiting_w=10.0)
    found = attribute(
        ops, times, whole, [Replayed(OpGroup(("op", "", (), None), (-1,), 1.0), EnergyWindow(10.0, 1.0, 1))]
    )
    assert found.ops == {ops[0].index: 10.0 + 60.0, ops[1].index: 10.0 + 20.0}
    assert found.figures["gap_joules"] == 80.0


def test_without_a_replay_the_whole_is_shared_by_time_and_explains_nothing() -> None:
    ops = seen(blocks(), torch.randn(4, 8)).ops
    whole = Whole(joules=500.0, seconds=float(2 * len(ops)), busy_s=float(len(ops)), waiting_w=1.0)
    found = attribute(ops, timed(ops, 1.0), whole, [], {"aten::addmm": "no memory"})
    assert (found.figures["method"], found.figures["explained_share"]) == (BY_TIME, None)
    assert sum(found.ops.values()) == pytest.approx(500.0)
    assert found.figures["refused"] == [{"op": "aten::addmm", "reason": "no memory"}]


def test_parts_that_a_profiler_slowed_down_last_no_longer_than_the_run() -> None:
    ops = seen(blocks(), torch.randn(4, 8)).ops
    whole = Whole(joules=50.0, seconds=1.0, busy_s=float(len(ops)), waiting_w=50.0)
    replayed = [Replayed(kind, EnergyWindow(50.0, 1.0, 1)) for kind in kinds(ops)]
    found = attribute(ops, timed(ops, 1.0), whole, replayed)
    assert found.figures["explained_share"] == pytest.approx(1.0)


def test_a_module_has_what_is_below_it() -> None:
    capture = seen(blocks(), torch.randn(4, 8))
    sums = inclusive_sums((op.module, 1.0) for op in capture.ops)
    assert sums[""] == len(capture.ops)
    assert sums["0"] == sums["0.0"] + sums["0.1"] + sums["0.2"]


MODELS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "blocks": (blocks(), (4, 8)),
    "attention": (zoo.FusedAttention().eval(), (2, 16, 32)),
    "convolutions": (
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2)).eval(),
        (2, 3, 16, 16),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_op_is_found_in_a_real_run_and_runs_alone(name: str) -> None:
    model, size = MODELS[name]
    x = torch.randn(size)
    wanted = [kind.key for kind in kinds(seen(model, x).ops)]
    with ready(model, Candidate((x,), {}, None), device=CPU) as subject:
        found = collect(subject, subject.run, wanted)
        assert found.keys() == set(wanted)
        for calls in found.values():
            play = prepare(calls, 0.01, CPU)
            assert isinstance(play, Play), play
            assert play.calls >= len(calls.arguments)


def test_calls_alternate_with_their_own_parameters_and_one_activation() -> None:
    model, x = blocks(), torch.randn(4, 8)
    wanted = next(kind.key for kind in kinds(seen(model, x).ops) if kind.key[0] == "aten::addmm")
    with ready(model, Candidate((x,), {}, None), device=CPU) as subject:
        calls = collect(subject, subject.run, [wanted])[wanted]
    biases, inputs, weights = zip(*(args for args, _ in calls.arguments), strict=True)
    assert len({weight.data_ptr() for weight in weights}) == len({bias.data_ptr() for bias in biases}) == 3
    assert len({tensor.data_ptr() for tensor in inputs}) == 1


def test_an_op_writes_to_a_copy() -> None:
    class Writer(nn.Module):
        count: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            return x + self.count

    model, x = Writer(), torch.ones(3)
    with ready(model, Candidate((x,), {}, None), device=CPU) as subject:
        key = next(kind.key for kind in kinds(seen(model, x).ops) if kind.key[0] == "aten::add_")
        play = prepare(collect(subject, subject.run, [key])[key], 1.0, CPU)
        assert isinstance(play, Play)
        before = model.count.clone()
        play.run()
        assert torch.equal(model.count, before)


def test_an_op_that_cannot_run_alone_says_why() -> None:
    model, x = blocks(), torch.randn(4, 8)
    with ready(model, Candidate((x,), {}, None), device=CPU) as subject:
        key = kinds(seen(model, x).ops)[0].key
        calls = collect(subject, subject.run, [key])[key]
    calls.arguments = [((torch.ones(2, 3),), {})]
    found = prepare(calls, 1.0, CPU)
    assert isinstance(found, Absent)
    assert "cannot be run by itself" in found.reason


def test_a_collector_leaves_other_ops_alone() -> None:
    with Collector([("aten::mul", "Tensor", (((2,), "float32"),), ((2,), "float32"))], nn.Identity()) as collector:
        x = torch.ones(2)
        x * x
        x + x
        x * 2
    assert [len(calls.arguments) for calls in collector.found.values()] == [1]


def test_the_key_of_a_signature_has_shapes_types_and_the_first_output() -> None:
    op = next(op for op in seen(nn.Linear(3, 5), torch.ones(2, 3)).ops if op.op == "aten::addmm")
    specs = (((5,), "float32"), ((2, 3), "float32"), ((3, 5), "float32"))
    assert key_of(op.signature) == ("aten::addmm", op.signature.overload, specs, ((2, 5), "float32"))


@pytest.fixture
def steady_meter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor as a device that takes 50 W, whatever it does."""

    class Steady(FunctionMeter):
        def read(self) -> Reading:
            # One look at the clock for both: a busy machine may pause between two.
            now = perf_counter()
            return Reading(50.0 * now, now)

    def find(device: str, stack: ExitStack) -> Any:
        yield Steady("steady", device, JOULES, 1e-3, 1e-6, lambda: 0.0)

    use_only(monkeypatch, "steady", find)


QUICK = EnergyPlan(
    Effort(budget_s=0.3, trials=3, settle_s=0.0, idle_s=0.05, warmup_s=0.1, least_trial_s=0.05), parts_s=1.0
)


@pytest.mark.usefixtures("steady_meter")
def test_whole_and_parts_of_a_model_survive_the_document() -> None:
    model, x = blocks(), torch.randn(4, 8)
    analysis = tg.analyze(model, inputs=x, progress=False)
    with ready(model, Candidate((x,), {}, None), device=CPU) as subject:
        facts = measure_run(subject, analysis.capture.ops, QUICK)
    figures: Any = facts.figures
    assert figures["origin"] == "measured"
    assert figures["watts_mean"] == pytest.approx(50.0)
    assert figures["idle_watts"] == pytest.approx(50.0)
    assert figures["net_joules"] == pytest.approx(0.0, abs=1e-6)
    assert figures["meters"][0]["used"] is True
    rows: dict[int, Any] = {index: row["energy_j"] for index, row in facts.ops.items()}
    assert facts.modules[""]["energy_j"] == pytest.approx(sum(rows.values()))
    assert figures["attribution"]["residue_j"] == pytest.approx(figures["joules"] - sum(rows.values()))

    document = View(replace(analysis.capture, energy=facts)).to_dict()
    assert document["totals"]["energy_j"] == figures["joules"]
    assert document["modules"][0]["energy_j"] == facts.modules[""]["energy_j"]
    assert document["energy"] == figures
    assert View(capture_from_document(document, "run")).to_dict() == document


@pytest.mark.usefixtures("steady_meter")
def test_the_whole_alone_can_be_asked_for() -> None:
    model, x = blocks(), torch.randn(4, 8)
    with ready(model, Candidate((x,), {}, None), device=CPU) as subject:
        facts = measure_run(subject, (), EnergyPlan(QUICK.effort, parts_s=0.0))
    assert facts.figures["attribution"] == {"method": None, "reason": "not asked for"}
    assert (facts.ops, facts.modules) == ({}, {})


def test_without_a_meter_the_figures_say_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(device: str, stack: ExitStack) -> Any:
        yield FunctionMeter("RAPL", device, JOULES, 1e-3, 1e-6, lambda: Absent("no folder"))

    use_only(monkeypatch, "rapl", find)
    with ready(blocks(), Candidate((torch.randn(4, 8),), {}, None), device=CPU) as subject:
        found = measure_run(subject, ()).figures
    assert (found["origin"], found["reason"]) == ("unavailable", "no energy meter: RAPL: no folder")
    assert found["joules"] is None
    assert [row["name"] for row in found["meters"]] == ["RAPL"]


@pytest.mark.parametrize(
    ("x", "tokens"),
    [(torch.zeros(2, 7, dtype=torch.int64), 14), (torch.zeros(2, 7), None), (torch.zeros(2, dtype=torch.int64), None)],
)
def test_tokens_are_the_whole_numbers_of_sequences(x: torch.Tensor, tokens: int | None) -> None:
    with ready(nn.Identity(), Candidate((x,), {}, None), device=CPU) as subject:
        assert tokens_per_run(subject) == tokens
