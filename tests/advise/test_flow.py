from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from tests.advise.planted import seen, timed
from torchgauge.advise import Evidence, advise
from torchgauge.advise.flow import MAX_FUSED_OPS, pointwise_chains
from torchgauge.facts import OpRecord


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        begin = torch.relu(x)
        return (torch.sigmoid(self.up(begin)) + begin.view(2, 4)).t()


def named(evidence: Evidence, name: str) -> OpRecord:
    return next(op for op in evidence.forward if op.op == f"aten::{name}")


@pytest.fixture
def evidence() -> Evidence:
    return seen(Residual(), 2, 4)


def test_a_parameter_and_the_models_input_come_from_no_op(evidence: Evidence) -> None:
    product, first = named(evidence, "addmm"), named(evidence, "relu")

    assert [evidence.flow.source(product, at) for at in range(3)] == [None, first, None]
    assert evidence.flow.source(first) is None
    assert list(evidence.flow.sources(product)) == [first]


def test_users_are_the_other_way_round(evidence: Evidence) -> None:
    assert evidence.flow.users(named(evidence, "relu")) == [named(evidence, "addmm"), named(evidence, "add")]
    assert evidence.flow.users(named(evidence, "add")) == ()


def test_views_are_looked_through_and_are_no_steps(evidence: Evidence) -> None:
    assert [op.op.removeprefix("aten::") for op in evidence.flow.steps] == ["relu", "addmm", "sigmoid", "add"]
    assert evidence.flow.source(named(evidence, "add"), 1) == named(evidence, "relu")


def test_the_only_reader_is_neither_one_of_two_nor_the_caller(evidence: Evidence) -> None:
    flow = evidence.flow

    assert flow.only_reader(named(evidence, "addmm")) == named(evidence, "sigmoid")
    assert flow.only_reader(named(evidence, "relu")) is None
    assert flow.is_result(named(evidence, "add"))
    assert flow.only_reader(named(evidence, "add")) is None


def test_what_is_written_to_in_place_comes_from_whoever_wrote_last() -> None:
    class Writes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            made = torch.sigmoid(x)
            made[:, :2].mul_(2)
            return torch.tanh(made)

    evidence = seen(Writes(), 2, 4)

    assert evidence.flow.source(named(evidence, "tanh")) == named(evidence, "mul_")
    assert evidence.flow.only_reader(named(evidence, "sigmoid")) == named(evidence, "mul_")


def test_what_nobody_reads_is_dead_unless_it_is_given_back() -> None:
    class Idle(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            torch.exp(x)
            return torch.tanh(x)

    evidence = seen(Idle(), 2, 4)

    assert evidence.flow.is_dead(named(evidence, "exp"))
    assert not evidence.flow.is_dead(named(evidence, "tanh"))


def test_results_are_found_in_nested_outputs() -> None:
    class Nested(nn.Module):
        def forward(self, x: Tensor) -> dict[str, list[Tensor]]:
            return {"a": [torch.tanh(x)], "b": [torch.exp(x)[0]]}

    evidence = seen(Nested(), 2, 4)

    assert set(evidence.capture.run.results) == {named(evidence, name).index for name in ("tanh", "exp")}


def without_producers(ops: tuple[OpRecord, ...]) -> Iterator[OpRecord]:
    return (replace(op, producers=()) for op in ops)


def test_a_run_saved_without_producers_has_no_flow_and_no_advice_that_needs_it() -> None:
    evidence = seen(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), 1, 3, 8, 8)
    old = Evidence(replace(evidence.capture, ops=tuple(without_producers(evidence.capture.ops))))

    assert "conv-bn-fusion" in {advice.rule for advice in advise(evidence)}
    assert old.flow.steps == ()
    assert "conv-bn-fusion" not in {advice.rule for advice in advise(old)}


class Diamond(nn.Module):
    """Two halves of a chain that meet again, and an op that needs a product of the chain's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        left, right = torch.exp(x), torch.tanh(x)
        met = left + right * 3
        return (met @ self.weight) * met


def test_halves_of_a_chain_that_meet_are_one_and_a_product_parts_it() -> None:
    evidence = seen(Diamond(), 4, 4)

    chains = [[op.op.removeprefix("aten::") for op in chain] for chain in pointwise_chains(evidence.flow)]

    assert chains == [["exp", "tanh", "mul", "add"]]


@pytest.mark.parametrize(("steps", "chains"), [(MAX_FUSED_OPS // 2, [MAX_FUSED_OPS]), (MAX_FUSED_OPS, [])])
def test_a_chain_longer_than_a_compiler_fuses_is_left_out(steps: int, chains: list[int]) -> None:
    class Long(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for _ in range(steps):
                x = torch.exp(-x)
            return x

    found = pointwise_chains(seen(Long(), 4).flow)

    assert [len(chain) for chain in found] == chains
    assert all([op.index for op in chain] == sorted(op.index for op in chain) for chain in found)


def test_with_times_a_share_is_of_the_measured_time(evidence: Evidence) -> None:
    first, second = named(evidence, "sigmoid"), named(evidence, "add")
    evidence = timed(evidence, {}, {first.index: {"time_s": 1e-3}, second.index: {"time_s": 3e-3}})

    assert evidence.share([first]).value == 0.25
    assert evidence.settled(evidence.share([first]).gain(0.5, 1.0, "a pass")).basis == "measured"


def test_without_times_a_share_is_of_the_predicted_time(evidence: Evidence) -> None:
    first, others = named(evidence, "sigmoid"), [op for op in evidence.forward if op.op != "aten::sigmoid"]

    assert 0 < evidence.share([first]).value < 1
    assert evidence.share([first]).value + evidence.share(others).value == pytest.approx(1.0)
    assert evidence.settled(evidence.share([first]).gain(0.5, 1.0, "a pass")).basis == "predicted"
