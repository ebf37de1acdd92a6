"""What an author chose, what is the same by chance, and a layer that is called twice."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.advise.fault_classes import Does, x
from tests.advise.planted import said, seen
from torchgauge.advise import Advice


def of_rule(rule: str, model: nn.Module, *inputs: Tensor) -> list[Advice]:
    return [advice for advice in said(seen(model.eval(), inputs=inputs)) if advice.rule == rule]


def always_random(self: Any, h: Tensor) -> Tensor:
    return F.dropout(torch.relu(self.fc(h)), p=0.5, training=True)


def forgotten(self: Any, h: Tensor) -> Tensor:
    return F.dropout(torch.relu(self.fc(h)), p=0.5)


def test_a_dropout_that_says_it_trains_is_meant() -> None:
    layer = nn.Linear(32, 32)

    assert not of_rule("dropout-in-evaluation", Does(always_random, fc=layer), x(8, 32))
    assert of_rule("dropout-in-evaluation", Does(forgotten, fc=layer), x(8, 32))


class Episode(nn.Module):
    """The statistics of a batch: as the caller asks for them, or always."""

    def __init__(self, is_asked: bool) -> None:
        super().__init__()
        self.is_asked, self.weight = is_asked, nn.Parameter(torch.ones(8))
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("spread", torch.ones(8))

    def asked(self, h: Tensor, by_batch: bool = True) -> Tensor:
        return F.batch_norm(h, self.mean, self.spread, self.weight, None, training=by_batch)  # type: ignore[arg-type]

    def forward(self, h: Tensor) -> Tensor:
        if self.is_asked:
            return self.asked(h)
        return F.batch_norm(h, self.mean, self.spread, self.weight, None, training=True)  # type: ignore[arg-type]


def test_statistics_that_an_argument_chooses_are_meant() -> None:
    assert not of_rule("batch-statistics-in-evaluation", Episode(True), x(4, 8, 6, 6))
    assert of_rule("batch-statistics-in-evaluation", Episode(False), x(4, 8, 6, 6))


class BothWays(nn.Module):
    """A recurrent layer in both directions, run once more for its other half, or on the reversed sequence."""

    def __init__(self, same: bool) -> None:
        super().__init__()
        self.same, self.rnn = same, nn.LSTM(16, 32, batch_first=True, bidirectional=True)

    def forward(self, h: Tensor) -> Tensor:
        state = torch.zeros(2, h.shape[0], 32), torch.zeros(2, h.shape[0], 32)
        out, state = self.rnn(h, state)
        for each in state:
            each.zero_()
        other, _ = self.rnn(h if self.same else h.flip(1), state)
        return torch.cat([out[..., :32], other[..., 32:]], -1)


def test_a_recurrent_layer_that_runs_twice_on_one_sequence_is_repeated_work() -> None:
    assert [advice.where.module for advice in of_rule("repeated-work", BothWays(True), x(2, 24, 16))] == ["rnn"]
    assert not of_rule("repeated-work", BothWays(False), x(2, 24, 16))


class Periods(nn.Module):
    """Folds a sequence by the periods that its own spectrum has, or by two that are the same in every run."""

    def __init__(self, from_data: bool) -> None:
        super().__init__()
        self.from_data, self.conv = from_data, nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, h: Tensor) -> Tensor:
        periods = [2, 2]
        if self.from_data:
            strongest = (0 * h.sum() + torch.tensor([25.0, 30.0])).long()
            periods = [int(each) for each in 64 // strongest.cpu().numpy()]
        out = [self.conv(h.reshape(4, 8, 64 // period, period)) for period in periods]
        return torch.stack([each.reshape(h.shape) for each in out]).sum(0)


@pytest.mark.parametrize(("from_data", "count"), [(True, 0), (False, 1)])
def test_rounds_that_are_equal_for_these_data_alone_are_not_repeated_work(from_data: bool, count: int) -> None:
    found = of_rule("repeated-work", Periods(from_data), x(4, 8, 64))

    assert sum("aten::convolution" in advice.evidence["repeated"] for advice in found) == count


class Vectors(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.table, self.fc = nn.Embedding(200, 16, dtype=dtype), nn.Linear(16, 4)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = self.fc(self.table(h[:, :3]).float()).sum(1) + self.fc(self.table(h[:, 3:]).float()).sum(1)
        return out


def test_a_table_whose_rows_are_cast_is_kept_in_the_narrower_type() -> None:
    words = torch.randint(0, 200, (4, 8))
    model = Vectors(torch.float64).eval()
    (found,) = of_rule("weight-cast", model, words)
    expected = model(words)
    exec(str(found.code), {"torch": torch, "model": model})

    assert found.expected_gain is not None
    assert found.expected_gain.quantity == "param_bytes"
    assert model.table.weight.dtype == torch.float32
    torch.testing.assert_close(model(words), expected)
    assert not of_rule("weight-cast", Vectors(torch.float32), words)
