"""Weights that all rounds read again, equal constants, data that was not given, sums by name, inputs in objects."""

from __future__ import annotations

from abc import ABCMeta
from array import array
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.advise.fault_classes import Does, x
from tests.advise.test_remedies import of_rule
from torchgauge import analyze

# --- loops over parts whose layers read all their weights again


class Frames(nn.Module):
    """An encoder of small images, called for one after the other."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, channels, 3, 2, 1), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, 2, 1), nn.ReLU(), nn.Conv2d(channels, channels, 3, 2, 1),
        )  # fmt: skip

    def forward(self, video: Tensor) -> Tensor:
        found = []
        for frame in video.unbind(1):
            found.append(self.encoder(frame).mean((2, 3)))
        return torch.stack(found, 1)


@pytest.mark.parametrize(("channels", "size", "is_slow"), [(512, 32, True), (64, 128, False)])
def test_the_weights_of_all_layers_of_a_round_are_read_again(channels: int, size: int, is_slow: bool) -> None:
    found = of_rule(Frames(channels), "loop-over-samples", x(1, 12, 3, size, size))
    assert bool(found) is is_slow


# --- work that is repeated on a constant that each layer makes anew


def with_loops(self: Any, h: Tensor, graph: Tensor) -> Tensor:
    for layer in self.layers:
        closed = graph + self.weight * torch.eye(graph.shape[0])
        h = torch.relu((closed / closed.sum(-1, keepdim=True)) @ layer(h))
    return h


def with_more_loops(self: Any, h: Tensor, graph: Tensor) -> Tensor:
    for number, layer in enumerate(self.layers):
        closed = graph + torch.full_like(graph, 0.1) + torch.eye(graph.shape[0]) * number
        h = torch.relu((closed / closed.sum(-1, keepdim=True)) @ layer(h))
    return h


@pytest.mark.parametrize(("forward", "is_repeated"), [(with_loops, True), (with_more_loops, False)])
def test_equal_constants_are_the_same_tensor(forward: Any, is_repeated: bool) -> None:
    model = Does(forward, layers=nn.ModuleList(nn.Linear(32, 32) for _ in range(3)))
    vars(model)["weight"] = 0.5
    found = of_rule(model, "repeated-work", x(512, 32), torch.rand(512, 512))
    assert any("aten::sum" in advice.evidence["repeated"] for advice in found) is is_repeated


# --- indices that stand for data that was not given


def placed(self: Any, h: Tensor) -> Tensor:
    boxes, ids = torch.zeros(h.shape[0], h.shape[1], 4, dtype=torch.long), h.long()
    left, right = self.table(boxes[..., 0] + ids), self.table(boxes[..., 2] + ids)
    return self.layer(left * right)


def test_different_columns_of_placeholders_are_not_the_same_work() -> None:
    model = Does(placed, table=nn.Embedding(9, 64), layer=nn.Linear(64, 64))
    assert of_rule(model, "repeated-work", torch.rand(8, 256)) == []


# --- a sum of tensors by name


def embedded(self: Any, ids: Tensor) -> Tensor:
    t = self.tables
    return t[0](ids) + t[1](ids) + t[2](ids) + t[3](ids) + t[4](ids) + t[5](ids) + t[6](ids) + t[7](ids) + t[8](ids)


def embedded_in_a_loop(self: Any, ids: Tensor) -> Tensor:
    codes = self.tables[0](ids).view(ids.shape[0], 9, -1)
    total = torch.zeros_like(codes[:, 0])
    for code in codes.unbind(1):
        total = total + code
    return total


@pytest.mark.parametrize(("forward", "has_dimension"), [(embedded, False), (embedded_in_a_loop, True)])
def test_a_sum_that_names_its_terms_has_no_dimension(forward: Any, has_dimension: bool) -> None:
    model = Does(forward, tables=nn.ModuleList(nn.Embedding(50, 576) for _ in range(9)))
    found = of_rule(model, "scan-in-python", torch.randint(50, (512,)))
    assert bool(found) is has_dimension


# --- a vector repeated for layers of which each reads it once


class Towers(nn.Module):
    def __init__(self, shares: bool) -> None:
        super().__init__()
        self.shares = shares
        self.layers = nn.ModuleList(nn.Linear(96, 64) for _ in range(1 if shares else 4))

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        joined = torch.cat([nodes, edges[:, None].repeat(1, nodes.shape[1], 1)], -1)
        if self.shares:
            made: Tensor = self.layers[0](joined)
            return made
        return torch.stack([layer(joined[:, at]) for at, layer in enumerate(self.layers)], 1)


@pytest.mark.parametrize("shares", [True, False])
def test_a_vector_that_each_layer_reads_once_is_not_repeated(shares: bool) -> None:
    assert bool(of_rule(Towers(shares), "repeated-input", x(2048, 4, 32), x(2048, 64))) is shares


# --- weights that a hook computes, kept by the module


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_weights_that_a_hook_keeps_are_not_held_activations() -> None:
    layers = [nn.utils.weight_norm(nn.Conv1d(256, 256, 3, padding=1)) for _ in range(6)]
    assert of_rule(nn.Sequential(*layers), "held-activations", x(1, 256, 32)) == []


# --- a parameter whose data forward sets before it is read


class Reparametrized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow, self.plain = nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3)
        self.other = nn.Conv2d(8, 8, 3)

    def forward(self, a: Tensor) -> Tensor:
        self.plain.weight.data = self.wide.weight + nn.functional.pad(self.narrow.weight, (1, 1, 1, 1))
        made: Tensor = self.plain(a)
        return made


def test_a_layer_that_is_called_reads_its_weight() -> None:
    idle = {advice.where.module for advice in of_rule(Reparametrized(), "unused-parameters", x(1, 8, 16, 16))}
    assert "other" in idle
    assert "plain" not in idle


# --- a weighted sum whose product would need its factors in another order


@pytest.mark.parametrize(("order", "is_product"), [("bdqp", False), ("bqpd", True)])
def test_a_sum_behind_other_dimensions_is_not_a_matrix_product(order: str, is_product: bool) -> None:
    def forward(self: Any, values: Tensor, weights: Tensor) -> Tensor:
        weighted = values * weights.unsqueeze(1 if order == "bdqp" else -1)
        return self.layer(weighted.sum(-1 if order == "bdqp" else 2).flatten(1))

    shape = (4, 32, 4096, 16) if order == "bdqp" else (4, 4096, 16, 32)
    model = Does(forward, layer=nn.Linear(32 * 4096, 2))
    assert bool(of_rule(model, "product-then-sum", x(*shape), x(4, 4096, 16))) is is_product


# --- inputs in objects


class Graph:
    def __init__(self, nodes: Tensor) -> None:
        self.nodes = nodes


class Closed(array):  # type: ignore[type-arg]
    """Written in C, so that what it holds cannot be found; torch_geometric's own loaders have such objects."""

    nodes: Tensor


def of_graph(self: Any, graph: Any) -> Tensor:
    made: Tensor = self.layer(torch.relu(graph.nodes))
    return made


def test_what_a_model_reads_in_an_object_is_no_constant() -> None:
    """As a batch of torch_geometric, whose class is made at run time, with the module of its metaclass."""
    batch: Any = ABCMeta("Batch", (Graph,), {})(x(64, 32))
    type(batch).__module__ = "abc"
    closed = Closed("f")
    closed.nodes = x(64, 32)
    model = Does(of_graph, layer=nn.Linear(32, 32))

    for graph in (Graph(x(64, 32)), batch, closed):
        assert of_rule(model, "recomputed-weight", graph) == []
        assert of_rule(model, "recomputed-constant", graph) == []
    found = analyze(model.eval(), inputs=(batch,), progress=False)
    assert [given.name for given in found.capture.inputs] == ["input0.nodes"]


class Hidden(array):  # type: ignore[type-arg]
    """As `Closed`, beside a tensor that is found."""

    nodes: Tensor


def test_a_model_whose_results_are_all_constant_was_not_understood() -> None:
    def forward(self: Any, graph: Any, mask: Tensor) -> Tensor:
        made: Tensor = self.layer(torch.relu(graph.nodes))
        return made

    hidden = Hidden("f")
    hidden.nodes = x(64, 32)
    assert of_rule(Does(forward, layer=nn.Linear(32, 32)), "recomputed-weight", hidden, x(64)) == []
