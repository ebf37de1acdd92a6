"""Functions written out, replaced by torch's own."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from tests.advise.trying import advised, apart, applied, bench, changed, kinds, lively, not_applicable, x

pytestmark = pytest.mark.usefixtures("one_thread")


class Gelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * torch.pow(x, 3.0))))


class LayerNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        spread = (x - mean).pow(2).mean(-1, keepdim=True)
        return self.gamma * ((x - mean) * torch.rsqrt(spread + 1e-3)) + self.beta


def test_a_module_that_is_a_gelu_is_replaced_by_one() -> None:
    model = nn.Sequential(nn.Linear(4, 256), Gelu(), nn.Linear(256, 4)).eval()
    place = bench(model, x(64, 4))

    side = changed(place, advised(model, "gelu-by-hand", x(64, 4)))

    assert kinds(side)[2] == "GELU"
    assert apart(place, side) < 1e-5


class ExactGelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def test_each_gelu_is_replaced_by_its_own_form_and_the_places_are_counted() -> None:
    class Amid(Gelu):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).softmax(-1)

    model = nn.Sequential(Gelu(), nn.Linear(64, 64), ExactGelu(), nn.Linear(64, 64), Amid()).eval()
    place = bench(model, x(512, 64))
    advice = advised(model, "gelu-by-hand", x(512, 64))

    how = applied(place, advice)
    layers = list(changed(place, advice).subject.model.children())

    assert (getattr(layers[0], "approximate", None), getattr(layers[2], "approximate", None)) == ("tanh", "none")
    assert type(layers[4]) is Amid
    assert (how.places, how.remark(3)) == (2, "applied at 2 of 3 places")
    assert how.remark(2) is None


def test_a_gelu_amid_a_forward_cannot_be_replaced() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.gelu = nn.Linear(4, 256), Gelu()

        def forward(self, x: Tensor) -> Tensor:
            return Gelu.forward(self.gelu, self.linear(x))

    model = Block().eval()
    place = bench(model, x(64, 4))

    assert "edit its source" in not_applicable(place, advised(model, "gelu-by-hand", x(64, 4)))


def test_a_module_that_is_a_layer_norm_uses_torchs() -> None:
    model = lively(nn.Sequential(nn.Linear(4, 64), LayerNorm(64)))
    place = bench(model, x(64, 4))

    side = changed(place, advised(model, "norm-by-hand", x(64, 4)))

    assert "layer_norm" in side.subject.model[1].forward.__code__.co_names  # type: ignore[index]
    assert apart(place, side) < 1e-5
