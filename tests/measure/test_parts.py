"""Modules and ops of real runs on the CPU: who took the time, joined to the static ops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import torchgauge as tg
from torchgauge.measure import (
    Budget,
    MeasurementPlan,
    ModuleWatch,
    Profiled,
    Subject,
    allocation_peak,
    fragmentation,
    join,
    measure,
    module_paths,
    profile_runs,
    ready,
    time_modules,
    unjoined_calls,
)
from torchgauge.source import Candidate

CPU = torch.device("cpu")
QUICK = Budget(seconds=0.2, least=3)


class Clock:
    """Stands still but for what takes time."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("torchgauge.measure.module_times.perf_counter", clock)
    return clock


class Taking(nn.Module):
    def __init__(self, seconds: float, clock: Clock) -> None:
        super().__init__()
        self.seconds, self.clock = seconds, clock

    def forward(self, x: Any) -> Any:
        self.clock.advance(self.seconds)
        return x


class Pair(nn.Module):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.short, self.long, self.clock = Taking(0.01, clock), Taking(0.03, clock), clock

    def forward(self, x: Any) -> Any:
        self.clock.advance(0.02)
        return self.long(self.short(self.short(x)))


def small_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))


def on_cpu(model: nn.Module, *args: Any) -> Subject:
    return Subject(model, args, {}, CPU)


def test_a_module_has_its_own_time_and_that_of_its_children(clock: Clock) -> None:
    model = Pair(clock)
    found = time_modules(on_cpu(model, 1).run, module_paths(model), runs=3)
    assert found["short"].calls == 2
    assert found["short"].self_s == pytest.approx(0.02)
    assert found["long"].self_s == pytest.approx(0.03)
    assert found[""].self_s == pytest.approx(0.02)
    assert found[""].inclusive_s == pytest.approx(0.07)


def test_a_module_has_the_time_it_takes_in_runs_as_long_as_the_median(clock: Clock) -> None:
    model = Taking(1.0, clock)
    watch = ModuleWatch(module_paths(model))
    for seconds in (1.0, 1.5, 0.99, 2.0, 1.01, 1.6):
        model.seconds = seconds
        watch.run(lambda: model(1))
    assert len(watch.near(1.0)) == 3
    assert watch.times(near_s=1.0)[""].self_s == pytest.approx(1.0)
    # Too few are as long as this: the nearest quarter.
    assert watch.times(near_s=1.55)[""].self_s == pytest.approx((1.5 + 1.6) / 2)


def test_a_module_that_calls_itself_is_inside_its_own_time_once(clock: Clock) -> None:
    class Again(nn.Module):
        def forward(self, depth: int) -> int:
            clock.advance(0.005)
            return self(depth - 1) if depth else 0

    model = Again()
    found = time_modules(on_cpu(model, 2).run, module_paths(model), runs=3)
    assert found[""].calls == 3
    assert found[""].inclusive_s == pytest.approx(found[""].self_s) == pytest.approx(0.015)


def test_the_class_wide_call_is_put_back_after_a_failure() -> None:
    before = nn.Module.__call__

    class Failing(nn.Module):
        def forward(self) -> None:
            raise ValueError("no")

    model = Failing()
    for watch in (
        lambda: time_modules(on_cpu(model).run, module_paths(model), runs=1),
        lambda: profile_runs(on_cpu(model).run, module_paths(model), 1, device=CPU),
    ):
        with pytest.raises(ValueError, match="no"):
            watch()
        assert nn.Module.__call__ is before


MODELS: dict[str, tuple[nn.Module, torch.Tensor]] = {
    "convolutions": (small_net().eval(), torch.randn(2, 3, 8, 8)),
    "lstm": (nn.LSTM(8, 16, 2), torch.randn(5, 2, 8)),
    "encoder": (nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval(), torch.randn(2, 5, 16)),
    "linear layer in place": (nn.Sequential(nn.Linear(8, 4), nn.ReLU()), torch.randn(5, 2, 8).transpose(0, 1)),
    "attention": (nn.TransformerDecoderLayer(16, 2, 32).eval().self_attn.out_proj, torch.randn(5, 2, 16)),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_static_op_is_found_in_the_profile_with_its_module(name: str) -> None:
    model, x = MODELS[name]
    ops = tg.analyze(model, inputs=x).capture.ops
    with torch.no_grad():
        run = profile_runs(on_cpu(model, x).run, module_paths(model), 1, device=CPU)[0]
    joined = join(ops, run)
    assert len(joined) == len(ops)
    starts = [joined[op.index].start_ns for op in ops]
    assert starts == sorted(starts)
    for op in ops:
        inside = [e.path for e in run.events if e.path is not None and _within(joined[op.index], e)]
        assert inside[-1] == op.module


def _within(inner: Any, outer: Any) -> bool:
    return outer.start_ns <= inner.start_ns and inner.end_ns <= outer.end_ns


def test_an_op_that_did_not_run_is_left_out_and_the_others_are_still_found() -> None:
    model, x = MODELS["convolutions"]
    ops = tg.analyze(model, inputs=x).capture.ops
    other = nn.Sequential(*[layer for layer in model.children() if not isinstance(layer, nn.ReLU)]).eval()
    with torch.no_grad():
        run = profile_runs(on_cpu(other, x).run, module_paths(other), 1, device=CPU)[0]
    missing = {op.signature.op for op in ops} - {ops[i].signature.op for i in join(ops, run)}
    assert missing == {"aten::relu"}


class AddedProducts(nn.Module):
    """Like the layers of GPT-2, which are no `nn.Linear`; a sum and a product of their own come after each."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(16, 16)), nn.Parameter(torch.randn(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = x + torch.addmm(self.bias, x, self.weight)
        return torch.mm(x, self.weight) + x


def scripted_run(model: nn.Module, x: torch.Tensor) -> tuple[Any, Profiled]:
    traced = torch.jit.trace(model, x)
    ops = tg.analyze(traced, inputs=x).capture.ops
    with torch.no_grad():
        for _ in range(3):
            traced(x)
        return ops, profile_runs(on_cpu(traced, x).run, {}, 1, device=CPU)[0]


def test_an_op_that_torchscript_runs_as_two_has_the_time_of_both() -> None:
    ops, run = scripted_run(AddedProducts(), torch.randn(4, 16))
    assert "aten::addmm" not in {event.name for event in run.events}
    joined = join(ops, run)
    parts = {op.index: [event.name for event in joined[op.index].events] for op in ops}
    assert [parts[op.index] for op in ops] == [["aten::mm", "aten::add"], ["aten::add"]] * 3 + [
        ["aten::mm"], ["aten::add"]
    ]  # fmt: skip
    assert all(joined[op.index].duration_ns == sum(e.duration_ns for e in joined[op.index].events) for op in ops)
    assert unjoined_calls(run, joined, on_device=False) == []


def test_a_call_of_no_static_op_is_named() -> None:
    ops, run = scripted_run(AddedProducts(), torch.randn(4, 16))
    joined = join([op for op in ops if op.op != "aten::addmm"], run)
    names = [call.name for call in unjoined_calls(run, joined, on_device=False)]
    assert {"aten::mm"} <= set(names) <= {"aten::mm", "aten::add"}


def test_a_profile_says_which_share_of_the_time_its_ops_have() -> None:
    model, x = MODELS["convolutions"]
    ops = tg.analyze(model, inputs=x).capture.ops
    with torch.no_grad():
        whole, few = (
            measure(on_cpu(model, x), given, MeasurementPlan(profile=True, budget=QUICK)).figures["profile"]
            for given in (ops, [op for op in ops if op.op != "aten::relu"])
        )
    assert whole is not None
    assert few is not None
    assert (whole["attributed_share"] or 0) > 0.9
    assert 0 < (few["attributed_share"] or 0) < (whole["attributed_share"] or 0)
    assert {row["op"]: row["calls"] for row in few["unjoined_calls"]}["aten::relu"] == 1


def test_the_allocations_of_a_run_reach_the_static_peak() -> None:
    model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 8)).eval()
    x = torch.randn(32, 64)
    a = tg.analyze(model, inputs=x)
    with torch.no_grad():
        run = profile_runs(on_cpu(model, x).run, module_paths(model), 1, device=CPU, memory=True)[0]
    assert allocation_peak(run, on_device=False) == a.totals.peak_activation_bytes - x.nbytes


def test_a_measurement_has_every_part_and_they_are_consistent() -> None:
    model, x = MODELS["convolutions"]
    ops = tg.analyze(model, inputs=x).capture.ops
    with ready(model, Candidate((x,), {}, None), device=CPU) as subject:
        found: Any = measure(subject, ops, MeasurementPlan(profile=True, budget=QUICK))
    assert found.figures["failure"] is None
    assert found.figures["latency"]["throughput_per_s"] == pytest.approx(2 / found.figures["latency"]["median_s"])
    assert set(found.modules) == {"", "0", "1", "2", "3", "4"}
    assert sum(row["self_time_s"] for row in found.modules.values()) == pytest.approx(found.modules[""]["time_s"])
    assert set(found.ops) == {op.index for op in ops}
    explained = sum(row["time_s"] for row in found.ops.values())
    assert found.figures["unexplained_s"] == pytest.approx(found.figures["latency"]["median_s"] - explained)


def test_a_training_step_is_timed_by_phase_and_leaves_the_model_unchanged() -> None:
    model = small_net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x = torch.randn(2, 3, 8, 8)
    ops = tg.analyze(model, inputs=x, mode="train").capture.ops
    with ready(model, Candidate((x,), {}, None), device=CPU, train=True) as subject:
        found: Any = measure(subject, ops, MeasurementPlan(profile=True, train=True, budget=QUICK))
    assert found.figures["failure"] is None
    assert set(found.figures["phases"]) == {"forward", "backward", "optimizer"}
    assert all(seconds > 0 for seconds in found.figures["phases"].values())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_that_raises_in_a_later_run_keeps_what_was_measured() -> None:
    class Fifth(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            if self.calls == 40:
                raise RuntimeError("out of luck")
            return x + 1

    with ready(Fifth(), Candidate((torch.ones(2),), {}, None), device=CPU) as subject:
        found: Any = measure(subject, (), MeasurementPlan(budget=Budget(seconds=60, least=1000)))
    assert found.figures["failure"] == "RuntimeError: out of luck"
    assert found.figures["latency"]["runs"] > 1


def test_fragmentation_is_the_share_of_reserved_memory_in_pieces_and_unknown_on_the_cpu() -> None:
    cuda: Any = {"cuda_reserved_peak_bytes": 4096, "cuda_split_peak_bytes": 1024}
    assert fragmentation(cuda)["fragmentation"] == 0.25
    cpu: Any = fragmentation({"rss_peak_bytes": 1})
    assert cpu["fragmentation"] is None
    assert "does not report" in cpu["fragmentation_reason"]
