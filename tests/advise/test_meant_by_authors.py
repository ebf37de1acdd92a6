"""Models that mean what looks like a mistake, and changes that do not run: each with a twin that has the fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.advise.fault_classes import Does, x
from tests.advise.planted import said, seen

Forward = Callable[..., Tensor]


def rules(model: nn.Module, *inputs: Tensor) -> set[str]:
    return {advice.rule for advice in said(seen(model.eval(), inputs=inputs))}


# --- randomness that a setting, a first call or a trained chance decides on


def by_setting(self: Any, a: Tensor) -> Tensor:
    return F.dropout(self.layer(a), 0.2, training=self.training or self.is_sampled)


def by_default(self: Any, a: Tensor) -> Tensor:
    return F.dropout(self.layer(a), 0.2)


def kept_mask(self: Any, a: Tensor) -> Tensor:
    if "mask" not in self.kept:
        self.kept["mask"] = (torch.rand(32, 32) < 0.2).float()
    return a @ (self.weight * self.kept["mask"])


def drawn_mask(self: Any, a: Tensor) -> Tensor:
    return a @ (self.weight * (torch.rand(32, 32) < 0.2).float())


def trained_chance(self: Any, a: Tensor) -> Tensor:
    return a @ (self.weight * torch.bernoulli(torch.sigmoid(self.weight)))


def rounded(self: Any, a: Tensor) -> Tensor:
    made = self.layer(a)
    return torch.floor(made / self.steps + torch.rand_like(made)) * self.steps


def dropped_paths(self: Any, a: Tensor) -> Tensor:
    return self.layer(a) / 0.8 * torch.floor(0.8 + torch.rand(a.shape[0], 1))


def samples_in_a_batch(self: Any, a: Tensor) -> Tensor:
    many = self.layer(a)[None].expand(6, -1, -1)
    return self.layer(F.dropout(many, 0.2)).mean(0)


def one_sample(self: Any, a: Tensor) -> Tensor:
    return self.layer(F.dropout(self.layer(a)[None], 0.2)).mean(0)


@pytest.mark.parametrize(
    ("forward", "is_wrong"),
    [
        (by_setting, False),
        (by_default, True),
        (kept_mask, False),
        (drawn_mask, True),
        (trained_chance, False),
        (rounded, False),
        (dropped_paths, True),
        (samples_in_a_batch, False),
        (one_sample, True),
    ],
)
def test_randomness_that_is_meant_is_no_forgotten_dropout(forward: Forward, is_wrong: bool) -> None:
    parts = {"layer": nn.Linear(32, 32), "weight": nn.Parameter(x(32, 32)), "steps": torch.full((32,), 0.1)}
    model = Does(forward, **parts)
    model.__dict__.update(is_sampled=True, kept={})

    assert ("dropout-in-evaluation" in rules(model, x(8, 32))) is is_wrong


class Sampled(nn.Dropout):
    def train(self, mode: bool = True) -> Sampled:
        return super().train(True)


class KeepsOn(nn.Sequential):
    def train(self, mode: bool = True) -> KeepsOn:
        super().train(mode)
        self[1].train()
        return self


class NeverOff(nn.Sequential):
    def train(self, mode: bool = True) -> NeverOff:
        return super().train(True)


@pytest.mark.parametrize(
    ("model", "is_wrong"),
    [
        (nn.Sequential(nn.Linear(32, 32), Sampled(0.2), nn.Linear(32, 8)), False),
        (KeepsOn(nn.Linear(32, 32), nn.Dropout(0.2), nn.Linear(32, 8)), True),
        (NeverOff(nn.Linear(32, 32), nn.Dropout(0.2), nn.Linear(32, 8)), True),
    ],
)
def test_a_class_of_dropout_that_stays_on_is_meant(model: nn.Module, is_wrong: bool) -> None:
    assert ("dropout-in-evaluation" in rules(model, x(8, 32))) is is_wrong


# --- a softmax over another axis


def rows_then_columns(self: Any, a: Tensor) -> Tensor:
    return (a @ self.layer(a).mT).softmax(-1).mT.softmax(-1)


def positions_then_channels(self: Any, a: Tensor) -> Tensor:
    return self.layer(a).flatten(1).softmax(-1).view(a.shape).softmax(1)


def same_rows(self: Any, a: Tensor) -> Tensor:
    return ((a @ self.layer(a).mT).softmax(-1).mT / 0.5).mT.flatten(0, 1).softmax(-1)


@pytest.mark.parametrize(
    ("forward", "is_wrong"), [(rows_then_columns, False), (positions_then_channels, False), (same_rows, True)]
)
def test_a_second_softmax_is_one_over_the_same_axis(forward: Forward, is_wrong: bool) -> None:
    assert ("double-softmax" in rules(Does(forward, layer=nn.Linear(32, 32)), x(4, 24, 32))) is is_wrong


# --- buffers that are written, but change no result, or hold a state for each sample


def looked_at_later(self: Any, a: Tensor) -> Tensor:
    self.mean.copy_(a.mean(0))
    return self.layer(a)


def written_then_read(self: Any, a: Tensor) -> Tensor:
    self.mean.copy_(a.mean(0))
    return self.layer(a - self.mean)


def moving(self: Any, a: Tensor) -> Tensor:
    self.mean.copy_(0.9 * self.mean + 0.1 * a.mean(0))
    return self.layer(a - self.mean)


def sums_by_sample(self: Any, a: Tensor) -> Tensor:
    self.state.mul_(0.9).add_(self.layer(a)[:, :, None] @ a[:, None])
    return torch.bmm(a[:, None], self.state)


@pytest.mark.parametrize(
    ("forward", "is_wrong"),
    [(looked_at_later, False), (written_then_read, False), (moving, True), (sums_by_sample, False)],
)
def test_a_buffer_counts_if_results_depend_on_earlier_calls(forward: Forward, is_wrong: bool) -> None:
    model = Does(forward, layer=nn.Linear(32, 32), mean=torch.zeros(32), state=torch.zeros(8, 32, 32))

    assert ("state-written-in-evaluation" in rules(model, x(8, 32))) is is_wrong


# --- a new layer that is given its weights


@pytest.mark.parametrize("is_given", [True, False])
def test_a_new_layer_whose_weights_are_replaced_is_not_random(is_given: bool) -> None:
    def forward(_: Any, a: Tensor) -> Tensor:
        blur = nn.Conv2d(1, 1, 3, bias=False)
        if is_given:
            blur.weight.data.copy_(torch.ones(1, 1, 3, 3) / 9)
        made: Tensor = blur(a)
        return made

    assert ("layer-in-forward" in rules(Does(forward, layer=nn.Linear(2, 2)), x(2, 1, 16, 16))) is not is_given


# --- folds that cannot be done as they are written, or for one of several norms


class LinearTurned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(x(64, 64))

    def forward(self, a: Tensor) -> Tensor:
        return a @ self.weight


@pytest.mark.parametrize(
    ("layer", "norm", "has_code"),
    [
        (nn.Linear(64, 64), nn.BatchNorm1d(64), True),
        (nn.Linear(64, 64), nn.BatchNorm1d(64, affine=False), False),
        (LinearTurned(), nn.BatchNorm1d(64), False),
    ],
)
def test_only_what_torch_can_fold_has_code(layer: nn.Module, norm: nn.Module, has_code: bool) -> None:
    found = said(seen(nn.Sequential(layer, norm).eval(), inputs=(x(32, 64),)))

    assert [bool(each.code) for each in found if each.rule == "linear-bn-fusion"] == [has_code]


@pytest.mark.parametrize("domains", [1, 2])
def test_one_of_several_norms_behind_a_layer_is_not_folded(domains: int) -> None:
    norms = nn.ModuleList(nn.BatchNorm1d(64) for _ in range(domains))
    model = Does(lambda self, a: self.norms[0](self.layer(a)), layer=nn.Linear(64, 64), norms=norms)

    assert ("linear-bn-fusion" in rules(model, x(32, 64))) is (domains == 1)


# --- an eps that is written by its name


class Damped(nn.Module):
    def __init__(self, is_named: bool) -> None:
        super().__init__()
        if is_named:
            self.norm = nn.LayerNorm(32, eps=1.0)
        else:
            self.other = nn.LayerNorm(32, 32)

    def forward(self, a: Tensor) -> Tensor:
        made: Tensor = self.norm(a) if hasattr(self, "norm") else self.other(a)
        return made


@pytest.mark.parametrize("is_named", [True, False])
def test_an_eps_by_its_name_is_meant(is_named: bool) -> None:
    assert ("large-eps" in rules(Damped(is_named), x(8, 32))) is not is_named
