"""Parameters that a module inherits, switches for all layers, statistics for each step, weights computed anew."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.advise.fault_classes import Does, x
from tests.advise.planted import said, seen
from torchgauge import analyze
from torchgauge.advise.code import SourceEdit


def rules(model: nn.Module, *inputs: Tensor) -> set[str]:
    return {advice.rule for advice in said(seen(model.eval(), inputs=inputs))}


# --- a mask of which an index takes one element


def masked(self: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    t = q.size(2)
    scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.size(-1))
    scores = scores.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))
    return scores.softmax(-1) @ v


def indexed(self: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    t = q.size(2)
    scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.size(-1))
    scores = scores.masked_fill(self.mask[:, :, t, t] == 0, float("-inf"))
    return scores.softmax(-1) @ v


@pytest.mark.parametrize(("forward", "is_causal"), [(masked, True), (indexed, False)])
def test_one_element_of_a_triangle_is_not_a_causal_mask(forward: Callable[..., Tensor], is_causal: bool) -> None:
    model = Does(forward)
    model.register_buffer("mask", torch.tril(torch.ones(300, 300)).view(1, 1, 300, 300))
    evidence = seen(model, inputs=tuple(x(2, 4, 256, 32) for _ in range(3)))

    (advice,) = [each for each in said(evidence) if each.rule == "attention-by-hand"]

    assert isinstance(advice.change, SourceEdit)
    written = b"".join(span.new for file in advice.change.files for span in file.spans)
    assert (b"is_causal=True" in written) is is_causal


# --- a parameter that a module inherits, and does not read


class Scores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.zeros(1, 64, 64))

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return (q @ k.transpose(-1, -2) + self.places).softmax(-1)


class PlainScores(Scores):
    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return (q @ k.transpose(-1, -2)).softmax(-1)


def scored(self: Any, a: Tensor) -> Tensor:
    return self.plain(self.layer(a), a) @ a


def test_a_module_that_is_called_is_not_replaced_for_its_idle_parameter() -> None:
    model = Does(scored, layer=nn.Linear(32, 32), plain=PlainScores())

    (advice,) = [each for each in said(seen(model.eval(), inputs=(x(2, 64, 32),))) if each.rule == "unused-parameters"]

    assert advice.where.weight == "plain.places"
    assert advice.change is None


# --- a tensor that a function permutes inside


def mixed(self: Any, a: Tensor) -> Tensor:
    near, far = (torch.einsum("ncvl,vw->ncwl", a, table) for table in (self.near, self.far))
    return near + far


def turned(self: Any, a: Tensor) -> Tensor:
    b = a.transpose(2, 3)
    return self.layer(b.reshape(-1, 48)) + self.other(b.reshape(-1, 48))


def test_the_view_that_einsum_makes_of_its_argument_is_not_put_in_order() -> None:
    tables = {name: nn.Parameter(torch.randn(48, 48)) for name in ("near", "far")}

    assert "repeated-work" not in rules(Does(mixed, **tables), x(4, 32, 48, 12))
    assert "repeated-work" in rules(Does(turned, layer=nn.Linear(48, 8), other=nn.Linear(48, 8)), x(4, 32, 48, 64))


# --- a switch for all layers of the process


class Mixed(nn.Module):
    """Attention of torch's over images of several sizes; `reads`: the last one's weights are used."""

    def __init__(self, reads: bool = False) -> None:
        super().__init__()
        self.large, self.small = (nn.MultiheadAttention(32, 4, batch_first=True) for _ in range(2))
        self.reads = reads

    def forward(self, a: Tensor) -> Tensor:
        fine, _ = self.large(a, a, a)
        coarse = fine[:, ::4]
        found, weights = self.small(coarse, coarse, coarse)
        return weights @ found if self.reads else torch.relu(found)


def test_layers_of_several_sizes_are_changed_together_where_the_switch_is_for_all() -> None:
    (line,) = [
        line
        for line in analyze(Mixed().eval(), inputs=(x(1, 2048, 32),), progress=False).advice
        if line["rule"] == "attention-fast-path"
    ]

    assert "['large', 'small']" in line["code"]
    assert "attention-fast-path" not in rules(Mixed(reads=True), x(1, 2048, 32))


# --- a random mask that hides nothing by zeros


def hidden(self: Any, a: Tensor) -> tuple[Tensor, Tensor]:
    mask = torch.rand(a.shape[0], a.shape[1], 1) < 0.5
    return self.layer(torch.where(mask, self.token, a)), mask


def replaced(self: Any, a: Tensor) -> Tensor:
    return self.layer(torch.where(torch.rand(a.shape[0], a.shape[1], 1) < 0.5, self.token, a))


def told(self: Any, a: Tensor) -> tuple[Tensor, Tensor]:
    mask = torch.rand(a.shape[0], a.shape[1], 1) < 0.5
    return self.layer(a * mask), mask


def filled(self: Any, a: Tensor) -> Tensor:
    return self.layer(a.masked_fill(torch.rand(a.shape) < 0.5, 1e3))


def dropped(self: Any, a: Tensor) -> Tensor:
    hidden = self.layer(a)
    return self.layer(torch.where(torch.rand(a.shape) < 0.5, torch.zeros_like(hidden), hidden))


@pytest.mark.parametrize(
    ("forward", "is_dropout"), [(hidden, False), (replaced, False), (told, False), (filled, False), (dropped, True)]
)
def test_dropout_puts_in_zeros_and_keeps_its_mask_to_itself(forward: Callable[..., Tensor], is_dropout: bool) -> None:
    model = Does(forward, layer=nn.Linear(32, 32), token=nn.Parameter(torch.zeros(32)))

    assert ("dropout-in-evaluation" in rules(model, x(4, 16, 32))) is is_dropout


# --- a norm with statistics for each step


class NormByStep(nn.Module):
    def __init__(self, steps: int, has_own: bool) -> None:
        super().__init__()
        self.steps, self.has_own = steps, has_own
        for step in range(steps):
            self.register_buffer(f"mean_{step}", torch.randn(64))
            self.register_buffer(f"var_{step}", torch.rand(64) + 0.5)

    def forward(self, a: Tensor, step: int) -> Tensor:
        at = step if self.has_own else 0
        return nn.functional.batch_norm(a, getattr(self, f"mean_{at}"), getattr(self, f"var_{at}"))


class Steps(nn.Module):
    def __init__(self, has_own: bool) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(64, 64), NormByStep(6, has_own)

    def forward(self, a: Tensor) -> Tensor:
        for step in range(6):
            a = torch.tanh(self.norm(self.layer(a), step))
        return a


@pytest.mark.parametrize("has_own", [False, True])
def test_a_norm_with_statistics_for_each_step_is_not_folded_into_one_layer(has_own: bool) -> None:
    assert ("linear-bn-fusion" in rules(Steps(has_own), x(512, 64))) is not has_own


# --- a weight that is computed anew in each call, next to code that sets parameters once


class Normed(nn.Module):
    """Starts from the statistics of its first batch; keeps the weight that it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(128, 128, 3, 3)), nn.Parameter(torch.zeros(128, 1, 1, 1))
        self.is_ready = True

    def of_unit_norm(self) -> Tensor:
        return self.scale.exp() * self.weight / self.weight.square().sum((1, 2, 3), keepdim=True).sqrt()

    def forward(self, a: Tensor) -> Tensor:
        if not self.is_ready:
            self.scale.data = -a.std().log() * torch.ones_like(self.scale)
        self.normed = self.of_unit_norm()
        return nn.functional.conv2d(a, self.normed)


def test_a_computed_weight_is_found_next_to_code_that_sets_parameters() -> None:
    assert "recomputed-weight" in rules(Normed(), x(1, 128, 8, 8))


class Scaled(nn.Module):
    """A cell that scales its recurrent weight in evaluation, as dropped connections need; the first state is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(256, 256)), nn.Parameter(torch.zeros(256))

    def forward(self, a: Tensor) -> Tensor:
        state = torch.zeros(2, 256)
        for step in a.unbind(1):
            state = torch.tanh(step + nn.functional.linear(state, self.weight * 0.5, self.bias))
        return state


def test_a_weight_that_each_round_scales_is_found_though_the_first_product_is_constant() -> None:
    assert "recomputed-weight" in rules(Scaled(), x(2, 12, 256))
