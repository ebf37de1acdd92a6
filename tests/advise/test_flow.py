from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.advise.planted import seen, timed
from torchgauge.advise import Evidence
from torchgauge.records import OpRecord


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

    assert evidence.flow.sources(product) == (None, first.index, None)
    assert evidence.flow.sources(first) == (None,)


def test_users_are_the_other_way_round(evidence: Evidence) -> None:
    assert named(evidence, "sigmoid").index in evidence.flow.users(named(evidence, "addmm"))


def test_views_are_looked_through_and_are_no_steps(evidence: Evidence) -> None:
    assert [op.op.removeprefix("aten::") for op in evidence.flow.steps] == ["relu", "addmm", "sigmoid", "add"]
    assert evidence.flow.before(named(evidence, "sigmoid")) == named(evidence, "addmm")
    assert evidence.flow.after(named(evidence, "add")) is None


def test_distinct_inputs_of_one_shape_have_distinct_sources(evidence: Evidence) -> None:
    assert len(set(evidence.flow.sources(named(evidence, "add")))) == 2


def test_without_times_a_share_is_of_the_bytes_moved(evidence: Evidence) -> None:
    op = named(evidence, "sigmoid")

    found = evidence.share([op])

    assert found.quantity == "bytes_moved"
    assert found.value == (2 * 4 * 4 * 2) / evidence.bytes_moved  # eight floats read and written


def test_with_times_a_share_is_of_the_time(evidence: Evidence) -> None:
    first, second = named(evidence, "sigmoid"), named(evidence, "add")
    evidence = timed(evidence, {}, {first.index: {"time_s": 1e-3}, second.index: {"time_s": 3e-3}})

    assert evidence.share([first]).quantity == "time_s"
    assert evidence.share([first]).value == 0.25


def test_what_is_given_back_behind_its_reader_is_released() -> None:
    evidence = seen(nn.Sequential(nn.Sigmoid(), nn.Tanh(), nn.Sigmoid()), 2, 4)
    first, second, third = evidence.forward

    assert evidence.is_released(first, second)
    assert not evidence.is_released(second, third)  # nothing follows that could tell


def test_fewer_passes_are_a_wider_range_of_time_than_of_bytes(evidence: Evidence) -> None:
    op = named(evidence, "sigmoid")
    of_bytes, of_time = evidence.share([op]), timed(evidence, {}, {op.index: {"time_s": 1.0}}).share([op])

    assert of_bytes.one_pass(0.8, 5).low == pytest.approx(0.4 * of_bytes.value)
    assert (of_time.one_pass(0.8, 5).low, of_time.one_pass(0.8, 5).high) == pytest.approx((0.08, 0.8))
