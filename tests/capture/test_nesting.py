"""Modules in modules, as deep as torch itself can call them; what is deeper is said clearly."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch
from torch import Tensor, nn

import torchgauge as tg
from torchgauge.capture import Request, nesting, trace
from torchgauge.source import Candidate

CPU = torch.device("cpu")


def nested(levels: int) -> nn.Module:
    model: nn.Module = nn.Linear(4, 4)
    for _ in range(levels):
        model = nn.Sequential(model)
    return model


def test_every_model_that_torch_can_call_is_analysed() -> None:
    model, x = nested(205), torch.ones(1, 4)
    model(x)
    assert tg.analyze(model, inputs=x).totals.macs == 16
    assert tg.analyze(model).totals.macs == 16


@pytest.mark.parametrize("levels", [1500, 3000])
def test_deeper_nesting_is_reported_with_a_remedy(levels: int) -> None:
    limit, model = sys.getrecursionlimit(), nested(levels)
    with pytest.raises(tg.InputError, match=rf"nested {levels + 1} deep.*sys\.setrecursionlimit"):
        trace(model, [Candidate((torch.ones(1, 4),), {}, None)], Request(CPU))
    assert sys.getrecursionlimit() == limit


def test_nesting_is_also_reported_for_inferred_inputs() -> None:
    importlib.import_module("torch._dynamo")  # where it is loaded, an analysis asks whether the model is compiled

    with pytest.raises(tg.InputError, match="nested 3001 deep"):
        tg.analyze(nested(3000))


def test_a_forward_that_calls_itself_without_end_is_the_models_own_failure() -> None:
    class Endless(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return self.forward(x)

    with pytest.raises(tg.ForwardError, match="recursion"):
        tg.analyze(Endless(), inputs=torch.ones(1))


def test_the_nesting_is_that_of_the_longest_path() -> None:
    shared = nn.Sequential(nn.ReLU())
    model = nn.Sequential(shared, nn.Sequential(nn.Sequential(shared)))
    assert nesting(model) == 5
    holds_itself = nn.Module()
    holds_itself.inner = holds_itself
    assert nesting(holds_itself) == 2
