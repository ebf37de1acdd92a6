"""Energy on a real device: against the counter itself, and the parts against the whole."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import pytest
import torch
from torch import nn

import torchgauge as tg
from torchgauge.energy import (
    Effort,
    EnergyPlan,
    EnergyWindow,
    Meter,
    Play,
    choose,
    collect,
    measure_energy_window,
    measure_run,
    meters_of,
    prepare,
)
from torchgauge.facts import EnergyFacts
from torchgauge.measure import Absent, Subject, ready
from torchgauge.source import Candidate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

CUDA = torch.device("cuda", 0)
QUICK = EnergyPlan(Effort(budget_s=6.0, trials=3, warmup_s=4.0), parts_s=12.0)


def blocks() -> nn.Module:
    """Wide enough that the device, not the processor, sets the pace."""
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(2048, 8192), nn.GELU(), nn.Linear(8192, 2048)) for _ in range(6))
    ).eval()


def counter(found: list[Meter]) -> Meter:
    chosen = choose(found, "cuda:0")
    assert not isinstance(chosen, Absent), chosen
    return chosen


def by_hand(subject: Subject, seconds: float) -> float:
    with meters_of("cuda:0") as found:
        meter = counter(found)
        before, runs, end = meter.read(), 0, perf_counter() + seconds
        while perf_counter() < end:
            subject.run()
            runs += 1
        after = meter.read()
    assert not isinstance(before, Absent)
    assert not isinstance(after, Absent)
    return (after.value - before.value) / runs


@pytest.fixture(scope="module")
def measured() -> tuple[EnergyFacts, float]:
    model, x = blocks(), torch.randn(2048, 2048)
    ops = tg.analyze(model, inputs=x, device="cuda", progress=False).capture.ops
    with ready(model, Candidate((x,), {}, None), device=CUDA) as subject:
        facts = measure_run(subject, ops, QUICK)
        return facts, by_hand(subject, 4.0)


def test_the_counter_changes_as_often_as_is_said() -> None:
    x = torch.randn(4096, 4096, device=CUDA)
    with meters_of("cuda:0") as found:
        meter, changes, begin = counter(found), set(), perf_counter()
        while perf_counter() - begin < 3.0:
            x @ x
            torch.cuda.synchronize()
            reading = meter.read()
            assert not isinstance(reading, Absent)
            changes.add(reading.value)
    assert 3.0 / len(changes) <= 2 * meter.update_period_s


def test_a_run_takes_what_a_plain_loop_reads_from_the_counter(measured: tuple[EnergyFacts, float]) -> None:
    facts, plain = measured
    figures: Any = facts.figures
    assert figures["origin"] == "measured", figures["reason"]
    assert figures["joules"] == pytest.approx(plain, rel=0.08)
    assert 0 < figures["net_joules"] < figures["joules"]
    assert figures["watts_peak"] >= figures["watts_mean"] > figures["idle_watts"]


def test_the_parts_explain_the_whole(measured: tuple[EnergyFacts, float]) -> None:
    facts, _ = measured
    attribution: Any = facts.figures["attribution"]
    assert attribution["method"] == "ops replayed", attribution
    assert all(row["is_graph"] for row in attribution["kinds"])
    assert attribution["explained_share"] == pytest.approx(1.0, abs=0.15)
    assert facts.modules[""]["energy_j"] == pytest.approx(sum(row["energy_j"] or 0.0 for row in facts.ops.values()))


def test_temperature_and_clocks_are_reported(measured: tuple[EnergyFacts, float]) -> None:
    thermal: Any = measured[0].figures["thermal"]
    assert 10 < thermal["temperature_c"]["max"] < 110
    assert thermal["clock_hz"]["max"] > 1e8
    assert len(thermal["series"]["power_w"]["values"]) > 20


def test_an_op_that_looks_at_values_runs_without_a_graph() -> None:
    class Selecting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.nonzero()

    x = torch.ones(64, 64)
    with ready(Selecting(), Candidate((x,), {}, None), device=CUDA) as subject, meters_of("cuda:0") as found:
        key = ("aten::nonzero", "", (((64, 64), "float32"),), ((4096, 2), "int64"))
        play = prepare(collect(subject, subject.run, [key])[key], 1e-4, CUDA)
        assert isinstance(play, Play)
        assert not play.is_graph
        assert isinstance(measure_energy_window(counter(found), play.run, 0.3), EnergyWindow)
