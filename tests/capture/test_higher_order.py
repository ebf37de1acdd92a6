from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchgauge as tg


class Branches(nn.Module):
    """The branch for false costs more."""

    def __init__(self) -> None:
        super().__init__()
        self.cheap = nn.Linear(4, 4)
        self.dear = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))

    def forward(self, x: Tensor, limit: Tensor | None = None) -> Tensor:
        condition = x.sum() > 0 if limit is None else limit.sum() > 3
        return torch.cond(condition, lambda h: self.cheap(h), lambda h: self.dear(h), (x,))


def calls(analysis: tg.Analysis) -> dict[str, int]:
    return {row.path: row.calls for row in analysis.modules}


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_of_a_branch_that_depends_on_data_the_dearer_side_is_counted(device: str) -> None:
    found = tg.analyze(Branches().to(device), inputs=torch.ones(2, 4, device=device))
    assert found.totals.macs == 2 * (4 * 8 + 8 * 4)
    assert calls(found) == {"": 1, "cheap": 0, "dear": 1, "dear.0": 1, "dear.1": 1}
    assert found.capture.run.mode == "fake"
    assert any(
        "the more expensive one was assumed, the one for false" in warning for warning in found.capture.run.warnings
    )


def test_branches_that_were_only_tried_leave_nothing_in_the_figures() -> None:
    found = tg.analyze(Branches(), inputs=torch.ones(2, 4))
    alone = tg.analyze(Branches().dear, inputs=torch.ones(2, 4))
    assert [op.op for op in found.ops] == ["aten::sum", "aten::gt", *(op.op for op in alone.ops)]
    assert [op.index for op in found.ops] == list(range(len(found.ops)))


@pytest.mark.parametrize(("limit", "taken"), [([1, 1], "dear"), ([2, 2], "cheap")])
def test_a_branch_that_is_known_is_taken_and_nothing_is_assumed(limit: list[int], taken: str) -> None:
    found = tg.analyze(Branches(), inputs=(torch.ones(2, 4), torch.tensor(limit)))
    assert [path for path in ("cheap", "dear") if calls(found)[path]] == [taken]
    assert not found.capture.run.warnings


def test_a_branch_is_trained_as_any_other_part() -> None:
    found = tg.analyze(Branches(), inputs=torch.ones(2, 4), mode="train")
    forward = 2 * (4 * 8 + 8 * 4)
    # The gradients of all weights, and that of the input of the second layer.
    assert found.totals.macs == forward + forward + 2 * 8 * 4


class Loops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, self.layer(h)), (torch.tensor(0), x))[1]


def test_a_loop_runs_as_often_as_its_counter_says() -> None:
    found = tg.analyze(Loops(), inputs=torch.ones(2, 4))
    assert (found.totals.macs, calls(found)["layer"]) == (3 * 2 * 16, 3)


class Endless(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return torch.while_loop(lambda i: i >= 0, lambda i: (i + 1,), (torch.tensor(0),))


def test_a_loop_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchgauge.capture.calls.LOOP_LIMIT", 100)
    with pytest.raises(tg.ForwardError, match="did not end"):
        tg.analyze(Endless(), inputs=torch.ones(1))


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.layers, x, use_reentrant=False)


def test_recomputation_in_the_backward_pass_is_counted() -> None:
    plain = tg.analyze(Checkpointed().layers, inputs=torch.ones(2, 4), mode="train")
    again = tg.analyze(Checkpointed(), inputs=torch.ones(2, 4), mode="train")
    # Up to the last tensor that is needed: the input of the second layer, so the first runs once more.
    assert again.totals.macs == plain.totals.macs + 2 * 16


def test_torch_compile_is_itself_again_afterwards() -> None:
    before = torch.compile
    tg.analyze(Branches(), inputs=torch.ones(2, 4))
    assert torch.compile is before


class Writes(nn.Module):
    """The branch for true, which costs less, writes to what both are given and to buffers."""

    seen: Tensor
    sums: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("sums", torch.zeros(2, 4))

    def forward(self, x: Tensor, inner: Tensor | None = None) -> Tensor:
        h = x * 2

        def write(h: Tensor) -> Tensor:
            self.seen.add_(1)
            self.sums.add_(h)
            if inner is not None:
                torch.cond(inner.sum() > 0, lambda h: h.add_(1), lambda h: h.mul_(2), (h,))
            return h.mul_(3)

        taken = torch.cond(x.sum() > 0, write, lambda h: self.fc(h), (h,))
        for _ in range(int(self.seen)):
            taken = taken.relu()
        return taken + (h + self.sums)


@pytest.mark.parametrize("inputs", [1, 2])
def test_writes_of_a_branch_that_is_only_tried_are_undone(inputs: int) -> None:
    found = tg.analyze(Writes(), inputs=(torch.ones(2, 4),) * inputs)
    ops = {op.op: op for op in found.capture.ops}
    # `int(self.seen)` is still 0: no relu.
    assert list(ops) == ["aten::mul", "aten::sum", "aten::gt", "aten::t", "aten::addmm", *list(ops)[5:]]
    assert "aten::relu" not in ops
    product, linear, (inner, outer) = ops["aten::mul"], ops["aten::addmm"], found.capture.ops[-2:]
    assert linear.producers == (None, product.index, None)
    assert inner.producers == (product.index, None)
    assert outer.producers == (linear.index, inner.index)


def test_known_values_stay_known_after_a_branch_that_was_only_tried() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            steps = torch.tensor([2])
            view = steps.view(1)
            branch = torch.cond(x.sum() > 0, lambda h: h + steps.add_(x.sum().long()), lambda h: self.fc(h), (x,))
            for _ in range(int(view)):
                branch = branch.relu()
            return branch

    found = tg.analyze(Counts(), inputs=torch.ones(2, 4))
    assert [op.op for op in found.capture.ops].count("aten::relu") == 2
    assert found.capture.run.mode == "fake"
