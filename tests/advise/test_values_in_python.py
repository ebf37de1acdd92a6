"""Values that Python takes from tensors, results that a loop overwrites, modes and branches that are meant."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.advise.fault_classes import Does, x
from tests.advise.test_elements_and_neighbours import of_rule


def cell_of_the_largest(self: Any, a: Tensor) -> Tensor:
    made = self.layer(a)
    place = made.sum(0).argmax()
    cell = torch.tensor([place % 8, place // 8], device=a.device)
    grid = torch.stack(torch.meshgrid(torch.arange(512), torch.arange(512), indexing="ij"), -1)
    return made.sum() * torch.exp(-(grid - cell).square().sum(-1).float())


def cell_in_the_middle(self: Any, a: Tensor) -> Tensor:
    made = self.layer(a)
    cell = torch.tensor([4, 4], device=a.device)
    grid = torch.stack(torch.meshgrid(torch.arange(512), torch.arange(512), indexing="ij"), -1)
    return made.sum() * torch.exp(-(grid - cell).square().sum(-1).float())


@pytest.mark.parametrize(("forward", "is_constant"), [(cell_of_the_largest, False), (cell_in_the_middle, True)])
def test_values_that_torch_tensor_takes_from_tensors_are_not_constants(forward: Any, is_constant: bool) -> None:
    model = Does(forward, layer=nn.Linear(64, 64))
    decays = [op for advice in of_rule(model, "recomputed-constant", x(16, 64)) for op in advice.evidence["made_by"]]
    assert ("aten::exp" in decays) is is_constant


@pytest.mark.parametrize(("forward", "is_read"), [(cell_of_the_largest, True), (cell_in_the_middle, False)])
def test_torch_tensor_of_tensors_makes_the_host_wait(forward: Any, is_read: bool) -> None:
    lines = of_rule(Does(forward, layer=nn.Linear(64, 64)), "host-wait", x(16, 64))
    assert ["torch.stack" in line.recommendation for line in lines] == [True] * is_read


def rows_that_values_choose(self: Any, a: Tensor) -> Tensor:
    made = self.layer(a)
    filled = torch.zeros(512, 512)
    for row in range(8):
        count = made[row][made[row] > 0].shape[0]
        filled[row, :count] = torch.arange(count) + 1.0
    return filled * made.mean()


def rows_of_one_length(self: Any, a: Tensor) -> Tensor:
    made = self.layer(a)
    filled = torch.zeros(512, 512)
    for row in range(8):
        filled[row, : made.shape[1]] = torch.arange(made.shape[1]) + 1.0
    return filled * made.mean()


@pytest.mark.parametrize(("forward", "is_constant"), [(rows_that_values_choose, False), (rows_of_one_length, True)])
def test_a_table_of_lengths_that_values_decide_is_not_a_constant(forward: Any, is_constant: bool) -> None:
    model = Does(forward, layer=nn.Linear(64, 64))
    assert bool(of_rule(model, "recomputed-constant", x(16, 64))) is is_constant


def all_of_the_input(self: Any, a: Tensor) -> Tensor:
    for layer in self.layers:
        out = layer(a)
    return out


def of_each_other(self: Any, a: Tensor) -> Tensor:
    for layer in self.layers:
        a = layer(a)
    return a


def kept_for_training(self: Any, a: Tensor) -> Tensor:
    found = []
    for layer in self.layers:
        out = layer(a)
        found.append(out)
    return found[-1]


@pytest.mark.parametrize(
    ("forward", "kinds"), [(all_of_the_input, ["bug"]), (of_each_other, []), (kept_for_training, ["gain"])]
)
def test_layers_whose_results_a_loop_overwrites_are_a_bug(forward: Any, kinds: list[str]) -> None:
    layers = nn.ModuleList(nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)) for _ in range(4))
    assert [line.kind for line in of_rule(Does(forward, layers=layers), "unread-result", x(64, 256))] == kinds


class ForcedNorm(nn.BatchNorm2d):
    def forward(self, input: Tensor) -> Tensor:
        return F.batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, True, self.momentum or 0.1
        )


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(8)

    def forward(self, a: Tensor) -> Tensor:
        norm = self.norm
        return F.batch_norm(a, norm.running_mean, norm.running_var, norm.weight, norm.bias, True, 0.1)


@pytest.mark.parametrize(("norm", "is_bug"), [(ForcedNorm(8), False), (Normed(), True)])
def test_a_class_that_forces_batch_statistics_is_meant_to(norm: nn.Module, is_bug: bool) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.ReLU())
    assert bool(of_rule(model, "batch-statistics-in-evaluation", x(4, 3, 16, 16))) is is_bug


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(64, 64, 1), nn.BatchNorm1d(64)

    def forward(self, a: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(a)))


class OfOneSample(Encoder):
    def forward(self, a: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(a)) if a.shape[0] > 1 else self.conv(a))


@pytest.mark.parametrize(("kind", "is_folded"), [(Encoder, True), (OfOneSample, False)])
def test_a_layer_that_a_branch_calls_without_its_norm_keeps_it(kind: type[Encoder], is_folded: bool) -> None:
    model = nn.Sequential(*(kind() for _ in range(4)))
    assert bool(of_rule(model, "conv-bn-fusion", x(4, 64, 512))) is is_folded
