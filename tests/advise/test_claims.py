"""What advice says about values is checked in runs of the model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.advise.planted import seen
from tests.advise.trying import x
from torchgauge.advise import Advice, Evidence, Gain, Where
from torchgauge.capture import Request, trace
from torchgauge.source import Candidate
from torchgauge.verify import Claims, CodeCheck


class Shifted(nn.Module):
    """`written` says whether memory is changed between two equal lines, past the view of torch."""

    def __init__(self, *, written: bool) -> None:
        super().__init__()
        self.written = written
        self.layer = nn.Linear(16, 16)

    def forward(self, a: Tensor) -> Tensor:
        b = a * 2
        first = b.softmax(-1)
        if self.written:
            b.detach().numpy()[:] = 1
        return self.layer(first + b.softmax(-1))


class Table(nn.Module):
    """A table that depends on nothing, or on a value of the input."""

    def __init__(self, *, is_constant: bool) -> None:
        super().__init__()
        self.is_constant = is_constant

    def forward(self, a: Tensor) -> Tensor:
        table = torch.arange(16.0).sin()
        scale = 1.0 if self.is_constant else a.flatten()[:1]
        return a + (table * scale).cos()


class Unread(nn.Module):
    def __init__(self, *, is_read: bool) -> None:
        super().__init__()
        self.is_read = is_read

    def forward(self, a: Tensor) -> Tensor:
        other = a.exp()
        return a.sin() + (other.sum() if self.is_read else 0)


def claims(model: nn.Module, *inputs: Tensor) -> tuple[Claims, list[str]]:
    request = Request(torch.device("cpu"))
    traced = trace(model.eval(), [Candidate(inputs, {}, None, True)], request)
    names = [op.op.removeprefix("aten::") for op in traced.ops]
    softmaxes = [index for index, name in enumerate(names) if name == "_softmax"]
    return Claims(model, traced, request, {softmaxes[1]: softmaxes[0]} if softmaxes else {}), names


def saying(rule: str, *ops: int) -> Advice:
    return Advice(rule, Where("", ops), {}, "do it", None, Gain("time_s", 0.1, 0.3, "said so"), "none", "high")


@pytest.mark.parametrize("written", [False, True])
def test_ops_that_compute_the_same_must_give_the_same(written: bool) -> None:
    checked, names = claims(Shifted(written=written), x(4, 16))
    last = max(index for index, name in enumerate(names) if name == "_softmax")
    assert checked.are_refuted_for(saying("repeated-work", last)) is written


@pytest.mark.parametrize("is_constant", [False, True])
def test_a_constant_must_not_change_with_the_inputs(is_constant: bool) -> None:
    checked, names = claims(Table(is_constant=is_constant), x(4, 16))
    assert checked.are_refuted_for(saying("recomputed-constant", names.index("cos"))) is not is_constant
    assert not checked.are_refuted_for(saying("recomputed-constant", names.index("sin")))


@pytest.mark.parametrize("is_read", [False, True])
def test_a_result_that_is_not_read_may_have_any_value(is_read: bool) -> None:
    checked, names = claims(Unread(is_read=is_read), x(4, 16))
    assert checked.are_refuted_for(saying("unread-result", names.index("exp"))) is is_read


def test_integer_inputs_keep_their_values_in_another_order() -> None:
    class Looked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(8, 4)

        def forward(self, ids: Tensor) -> Tensor:
            return self.table(ids).cos() + torch.arange(4.0).sin()

    checked, names = claims(Looked(), torch.arange(8))
    assert not checked.are_refuted_for(saying("recomputed-constant", names.index("sin")))
    assert checked.are_refuted_for(saying("recomputed-constant", names.index("cos")))


def test_runs_that_take_another_path_refute_nothing() -> None:
    class Branching(nn.Module):
        def forward(self, a: Tensor) -> Tensor:
            return (a.cos() if a.flatten()[0] == 0 else a.sin()).exp()

    checked, names = claims(Branching(), torch.zeros(4, 4))
    assert not checked.are_refuted_for(saying("recomputed-constant", names.index("exp")))


def test_the_model_and_its_inputs_are_left_unchanged() -> None:
    class Counting(nn.Module):
        count: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, a: Tensor) -> Tensor:
            self.count += 1
            return torch.arange(16.0).sin() + a.mul_(2)

    model, given = Counting(), x(4, 16)
    before = given.clone()
    checked, names = claims(model, given)
    assert not checked.are_refuted_for(saying("recomputed-constant", names.index("sin")))
    assert torch.equal(given, before)
    assert model.count == 0


@pytest.mark.parametrize("written", [False, True])
def test_only_true_lines_pass_the_check(written: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = Shifted(written=written).eval(), x(64, 32, 16)
    evidence, request = seen(model, inputs=(given,)), Request(torch.device("cpu"))
    traced = trace(model, [Candidate((given,), {}, None, True)], request)
    first, last = (op.index for op in evidence.forward if op.op == "aten::_softmax")
    # As if the write had not been seen.
    monkeypatch.setattr(type(evidence.dataflow), "first_runs", {last: first})
    check = CodeCheck(model, traced, request, evidence, Evidence)

    assert (check(saying("repeated-work", last)) is None) is written
