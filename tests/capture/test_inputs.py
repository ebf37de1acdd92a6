"""Which ops read which input of the model, and that a constant is none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchgauge as tg
from torchgauge.facts import InputRecord, capture_from_document


class Mixes(nn.Module):
    """Inputs, a constant and a result that are all alike; `looks` makes it look at its data."""

    def __init__(self, looks: bool = False) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.table = torch.ones(2, 4)
        self.looks = looks

    def forward(self, left: Tensor, right: Tensor, *, rest: dict[str, list[Tensor]]) -> Tensor:
        if self.looks and bool(left.sum() < 0):
            return left
        first, second = rest["pair"]
        first.relu_()
        return self.fc(left.view(4, 2).view(2, 4)) + right * self.table + first - second


def ones() -> Tensor:
    return torch.ones(2, 4)


def mixed(
    looks: bool = False, second: Tensor | None = None, right: Tensor | None = None, **options: Any
) -> tg.Analysis:
    rest = {"pair": [ones(), ones() if second is None else second]}
    given = (ones(), ones() if right is None else right)
    return tg.analyze(Mixes(looks), inputs=given, kwargs={"rest": rest}, **options)


def read_by(found: tg.Analysis) -> dict[str, list[tuple[str, int]]]:
    """By input: the ops that read it, with the place it has among their inputs."""
    ops = found.capture.ops
    return {
        given.name: [(ops[index].op, place) for index, place in given.readers or ()] for given in found.capture.inputs
    }


READ = {
    "left": [("aten::view", 0), ("aten::view", 0), ("aten::addmm", 1)],
    "right": [("aten::mul", 0)],
    "rest.pair[0]": [("aten::relu_", 0)],
    "rest.pair[1]": [("aten::sub", 1)],
}


def test_inputs_that_are_alike_have_their_own_readers_also_through_views() -> None:
    assert read_by(mixed()) == READ


def test_a_real_run_records_the_same() -> None:
    found = mixed(looks=True)
    assert found.capture.run.mode == "real"
    read = read_by(found)
    assert read.pop("left") == [("aten::sum", 0), *READ["left"]]
    assert read == {name: readers for name, readers in READ.items() if name != "left"}


def test_a_constant_has_no_producer_and_is_not_an_input() -> None:
    found = mixed()
    product = next(op for op in found.capture.ops if op.op == "aten::mul")
    assert product.producers == (None, None)
    assert {place for given in found.capture.inputs for op, place in given.readers or () if op == product.index} == {0}


@pytest.mark.parametrize("looks", [False, True])
def test_an_op_that_writes_to_an_input_is_what_later_ones_read(looks: bool) -> None:
    ops = mixed(looks).capture.ops
    written = next(op for op in ops if op.op == "aten::relu_")
    assert written.producers == (None,)
    assert [op.op for op in ops if written.index in op.producers] == ["aten::add"]


@pytest.mark.parametrize("looks", [False, True])
def test_a_tensor_that_is_given_twice_has_the_same_readers_under_both_names(looks: bool) -> None:
    both = ones()
    read = read_by(mixed(looks, second=both, right=both))
    assert read["right"] == read["rest.pair[1]"] == [*READ["right"], *READ["rest.pair[1]"]]


def test_producers_are_ops_or_nothing() -> None:
    for found in (mixed(), mixed(looks=True), mixed(mode="train")):
        producers = [producer for op in found.capture.ops for producer in op.producers if producer is not None]
        assert all(0 <= producer < len(found.capture.ops) for producer in producers)


def test_the_backward_pass_reads_inputs_too() -> None:
    found = mixed(mode="train")
    phases = {found.capture.ops[index].phase for index, _ in found.capture.inputs[0].readers or ()}
    assert phases == {"forward", "backward"}


def test_an_input_returned_unchanged_is_not_the_result_of_an_op() -> None:
    found = tg.analyze(nn.Identity(), inputs=ones())
    assert found.capture.run.results == ()
    assert found.capture.inputs == (InputRecord("input", found.capture.inputs[0].spec, None, ()),)


def test_an_input_is_recorded_before_the_model_transposes_it() -> None:
    class Turns(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.t_() + 1

    assert tg.analyze(Turns(), inputs=ones()).capture.inputs[0].spec.shape == (2, 4)


def test_a_real_run_leaves_the_users_inputs_unchanged() -> None:
    left, rest = -ones(), {"pair": [-ones(), ones()]}
    found = tg.analyze(Mixes(looks=True), inputs=(ones(), left), kwargs={"rest": rest})
    assert found.capture.run.mode == "real"
    assert torch.equal(left, -ones())
    assert torch.equal(rest["pair"][0], -ones())


def test_the_document_keeps_the_readers_and_older_ones_are_read_without() -> None:
    found = mixed()
    document = found.to_dict()
    assert [row["readers"] for row in document["inputs"]][1] == [[5, 0]]
    assert capture_from_document(document, "run").inputs == found.capture.inputs
    for row in document["inputs"]:
        del row["readers"]
    older = capture_from_document(document, "run").inputs
    assert [(given.name, given.readers) for given in older] == [(given.name, None) for given in found.capture.inputs]
