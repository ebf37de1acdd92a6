"""Attention switched to its fused form."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from tests.advise.trying import advised, apart, bench, changed, not_applicable, row, x
from torchgauge.analysis import ModelInMemory

pytestmark = pytest.mark.usefixtures("one_thread")


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.attention(x, x, x, need_weights=True)[0]
        return y


def test_attention_is_told_that_nobody_wants_its_weights() -> None:
    model = Attending().eval()
    place = bench(model, x(2, 8, 16))
    advice = row("attention-by-hand", module="attention")

    side = changed(place, advice)

    with torch.no_grad():
        assert side.subject.model.attention(*[x(2, 8, 16)] * 3)[1] is None  # type: ignore[operator]
    assert apart(place, side) < 1e-5


class Pretrained(nn.Module):
    """The two ways to attend that a model of transformers has."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(_attn_implementation="eager")

    def set_attn_implementation(self, name: str) -> None:
        self.config._attn_implementation = name

    def forward(self, x: Tensor) -> Tensor:
        if self.config._attn_implementation == "sdpa":
            return nn.functional.scaled_dot_product_attention(x, x, x)
        return torch.softmax(x @ x.mT / x.shape[-1] ** 0.5, -1) @ x


def test_a_model_of_transformers_is_switched_to_fused_attention() -> None:
    model = nn.Sequential(Pretrained()).eval()
    place = bench(model, x(2, 32, 8))

    side = changed(place, advised(model, "attention-by-hand", x(2, 32, 8)))

    assert side.subject.model[0].config._attn_implementation == "sdpa"  # type: ignore[index]
    assert model[0].config._attn_implementation == "eager"  # type: ignore[union-attr]
    assert apart(place, side) < 1e-5


def test_models_of_timm_are_switched_to_fused_attention() -> None:
    class Attention(nn.Module):
        fused_attn = False

        def forward(self, x: Tensor) -> Tensor:
            return x + 1

    model = nn.Sequential(Attention())
    side = changed(bench(model, x(2, 2)), row("attention-by-hand", module="0"))

    assert side.subject.model[0].fused_attn is True  # type: ignore[index]
    assert "edit its source" in not_applicable(bench(nn.ReLU(), x(2, 2)), row("attention-by-hand"))


def test_a_switch_is_shown_only_where_the_class_has_a_fused_form() -> None:
    """Classes of transformers without one take the setting and go on as before."""

    class Plain(nn.Module):
        _supports_sdpa = False

    class Fused(nn.Module):
        _supports_sdpa = True

    for kind in (Plain, Fused):
        model = ModelInMemory(nn.Sequential(kind()))
        assert model.has("0", "_supports_sdpa")
        assert model.has("0", "_supports_sdpa", is_set=True) is kind._supports_sdpa
