"""Gains that depend on the memory of a process, tables of the first call, lazy layers, layers that a call makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.advise.fault_classes import Does, x
from tests.advise.planted import said, seen
from torchgauge import analyze
from torchgauge.advise import advise


def rules(model: nn.Module, *inputs: Tensor) -> set[str]:
    return {advice.rule for advice in said(seen(model.eval(), inputs=inputs))}


# --- folded norms whose gain depends on which memory the process keeps


@pytest.mark.parametrize(("side", "is_named"), [(16, True), (64, False)])
def test_a_fold_that_saves_fresh_memory_rather_than_time_is_not_promised(side: int, is_named: bool) -> None:
    def forward(self: Any, a: Tensor) -> Tensor:
        kept = []
        for layer in self.layers:
            a = layer(a)
            kept.append(a)
        return sum((each.mean((2, 3)) for each in kept), start=a.mean((2, 3)))

    layers = [nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64)) for _ in range(8)]

    evidence = seen(Does(forward, layers=nn.ModuleList(layers)).eval(), inputs=(x(1, 64, side, side),))

    assert ("conv-bn-fusion" in {advice.rule for advice in advise(evidence)}) == is_named


# --- a table that the first call keeps, in a model that runs for real


def table(length: int, width: int) -> Tensor:
    angles = torch.arange(1.0 * length)[:, None] * torch.arange(width // 2)
    return torch.cat([angles.sin(), angles.cos()], 1)


@pytest.mark.parametrize(("is_kept", "is_named"), [(True, False), (False, True)])
def test_a_table_is_kept_by_a_model_whose_shapes_depend_on_values(is_kept: bool, is_named: bool) -> None:
    def forward(self: Any, a: Tensor) -> Tensor:
        if not is_kept or a.shape[0] not in self.tables:
            self.tables[a.shape[0]] = table(*a.shape)
        return self.layer((a + self.tables[a.shape[0]])[a.sum(1) > 0])

    model = Does(forward, layer=nn.Linear(32, 4))
    model.__dict__["tables"] = {}
    evidence = seen(model.eval(), inputs=(x(4000, 32),))

    assert evidence.capture.run.mode == "real"
    assert ("recomputed-constant" in {advice.rule for advice in advise(evidence)}) == is_named


# --- a merged convolution of so few channels that it takes as long as the wider one


@pytest.mark.parametrize(("channels", "made", "is_named"), [(64, 16, True), (12, 3, False)])
def test_a_merged_layer_that_is_as_slow_as_the_wider_one_is_not_promised(
    channels: int, made: int, is_named: bool
) -> None:
    narrow = [nn.Conv2d(channels, channels, 3, padding=1), nn.Conv2d(channels, made, 1)]
    wide = [nn.Conv2d(made, 64, 7, padding=3), nn.ReLU(), nn.Conv2d(64, 8, 7)]
    evidence = seen(nn.Sequential(*narrow, *wide).eval(), 1, channels, 96, 96)

    assert ("consecutive-layers" in {advice.rule for advice in advise(evidence)}) == is_named


# --- code for layers that have no weights yet


def test_a_patch_waits_for_lazy_layers() -> None:
    model, given = nn.Sequential(nn.LazyLinear(512), nn.Linear(512, 128)).eval(), x(1, 1024)

    (before,) = [row for row in analyze(model, inputs=(given,)).advice if row["rule"] == "consecutive-layers"]
    model(given)
    (after,) = [row for row in analyze(model, inputs=(given,)).advice if row["rule"] == "consecutive-layers"]

    assert (before["code"], before["code_kind"]) == (None, None)
    assert "call the model once" in before["risk"]
    exec(str(after["code"]), {"torch": torch, "model": model})


# --- a resize to the size that a tensor has


def resized(h: Tensor, **how: Any) -> Tensor:
    return F.interpolate(h, mode="bilinear", **how)


@pytest.mark.parametrize(
    ("resize", "is_named"),
    [
        (lambda h: resized(h, size=h.shape[2:]), True),
        (lambda h: resized(h, scale_factor=1.0), True),
        (lambda h: resized(h.mT, size=h.shape[2:]), True),
        (lambda h: resized(h, scale_factor=1.01), False),  # the same size, between the pixels
        (lambda h: resized(h, size=(64, 48)), False),
        (lambda h: F.pad(h, (2, -2)), False),  # the same size, moved
        (lambda h: resized(h, size=h.shape[2:]).relu_() + h, False),
    ],
)
def test_a_resize_to_the_same_size_is_a_needless_copy(resize: Callable[[Tensor], Tensor], is_named: bool) -> None:
    def forward(self: Any, a: Tensor) -> Tensor:
        return self.head(resize(self.layer(a)))

    model = Does(forward, layer=nn.Conv2d(3, 32, 3, padding=1), head=nn.Conv2d(32, 8, 3)).eval()
    evidence = seen(model, inputs=(x(2, 3, 64, 64),))

    assert ("needless-copy" in {advice.rule for advice in advise(evidence)}) == is_named


# --- experts: the units of a recurrent model, and a router that is a module


def units(self: Any, a: Tensor) -> Tensor:
    state = a.new_zeros(len(a), 6, 256)
    for step in a.unbind(1) if self.is_recurrent else a[:, :1].unbind(1):
        both = torch.cat([step[:, None].expand_as(state), state], -1)
        new = torch.bmm(both.transpose(0, 1), self.weights).transpose(0, 1).tanh()
        best = self.router(step).topk(2).indices
        mask = torch.zeros(len(a), 6).scatter(1, best, 1.0)[..., None]
        state = mask * new + (1 - mask) * state
    return state.sum(1)


@pytest.mark.parametrize(
    ("batch", "is_recurrent", "is_named"), [(64, False, True), (64, True, False), (4, False, False)]
)
def test_units_of_a_recurrent_model_and_few_tokens_are_not_dense_experts(
    batch: int, is_recurrent: bool, is_named: bool
) -> None:
    model = Does(units, router=nn.Linear(256, 6), weights=nn.Parameter(torch.randn(6, 512, 256)))
    model.__dict__["is_recurrent"] = is_recurrent

    assert ("dense-experts" in rules(model, x(batch, 5, 256))) == is_named


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 4)

    def forward(self, a: Tensor) -> tuple[Tensor, Tensor]:
        gates, best = self.layer(a).softmax(-1).topk(2)
        return gates, best


def test_the_tokens_of_experts_are_sorted_also_where_the_router_is_a_module() -> None:
    def forward(self: Any, a: Tensor) -> Tensor:
        gates, best = self.router(a)
        out = torch.zeros_like(a)
        for number, expert in enumerate(self.experts):
            row, place = torch.where(best == number)
            out.index_add_(0, row, expert(a[row]) * gates[row, place, None])
        return out

    experts = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
    found = said(seen(Does(forward, router=Router(), experts=experts).eval(), inputs=(x(32, 64),)))
    words = [advice.recommendation for advice in found if advice.rule == "host-wait"]

    assert any("sort tokens by expert" in text for text in words)


# --- a layer that every call makes


def kept(self: Any) -> nn.Module:
    if "made" not in self.__dict__:
        self.__dict__["made"] = nn.Linear(64, 32)
    return cast("nn.Module", self.__dict__["made"])


@pytest.mark.parametrize(
    ("make", "is_named"),
    [
        (lambda self: nn.Linear(64, 32), True),
        (lambda self: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32, bias=False)), True),
        (lambda self: kept(self), False),
        (lambda self: nn.LayerNorm(64), False),  # ones and zeros
        (lambda self: self.layer, False),
    ],
)
def test_a_layer_that_every_call_makes_is_a_bug(make: Callable[[Any], nn.Module], is_named: bool) -> None:
    model = Does(lambda self, a: make(self)(self.layer(a)), layer=nn.Linear(64, 64))
    found = [each for each in said(seen(model.eval(), inputs=(x(32, 64),))) if each.rule == "layer-in-forward"]

    assert [each.kind for each in found] == ["bug"] * is_named


# --- groups that torch computes one after the other, each with its bias


@pytest.mark.parametrize(("kernel", "bias", "is_named"), [(3, False, True), (1, True, True), (1, False, False)])
@pytest.mark.usefixtures("one_thread")
def test_a_norm_is_not_folded_where_a_bias_for_each_group_takes_longer(kernel: int, bias: bool, is_named: bool) -> None:
    layer = nn.Conv2d(64, 64, kernel, padding=kernel // 2, groups=64, bias=bias)
    model = nn.Sequential(layer, nn.BatchNorm2d(64), nn.ReLU())

    assert ("conv-bn-fusion" in rules(model, x(1, 64, 16, 16))) == is_named
