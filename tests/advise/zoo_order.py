"""Faults in the order of ops and in what they overwrite, and the same models without them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.advise.fault_classes import Does, ids, x
from tests.advise.faulty_models import Wrapped
from tests.advise.planted import Planted, seen


def case(name: str, rule: str, place: str, fault: nn.Module, twin: nn.Module, *inputs: Tensor) -> Planted:
    return Planted(name, rule, place, lambda: seen(fault, inputs=inputs), lambda: seen(twin, inputs=inputs))


class Residual(nn.Module):
    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.ReLU(in_place), nn.Linear(64, 64), nn.ReLU(True), nn.Linear(64, 64))

    def forward(self, h: Tensor) -> Tensor:
        return h + self.branch(h)


def along_edges(self: Any, nodes: Tensor, edges: Tensor) -> Tensor:
    return torch.relu(self.message(torch.cat([nodes[edges[0]], nodes[edges[1]]], -1)))


def before_edges(self: Any, nodes: Tensor, edges: Tensor) -> Tensor:
    source, target = self.message(torch.cat([nodes, nodes], -1)).chunk(2, -1)
    return torch.relu(source[edges[0]] + target[edges[1]])


def residuals(self: Any, h: Tensor) -> Tensor:
    weight = self.assign(h).softmax(-1)
    return ((h[:, :, None] - self.centres) * weight[..., None]).sum(1)


def residuals_at_once(self: Any, h: Tensor) -> Tensor:
    weight = self.assign(h).softmax(-1)
    return weight.transpose(1, 2) @ h - weight.sum(1)[..., None] * self.centres


def pairs_by_list(_: Any, h: Tensor) -> Tensor:
    count = h.shape[1]
    first = torch.tensor([i for i in range(count) for _ in range(i)])
    second = torch.tensor([j for i in range(count) for j in range(i)])
    return h[:, first] * h[:, second]


def pairs_by_table(self: Any, h: Tensor) -> Tensor:
    return h[:, self.first] * h[:, self.second]


def codebook(forward: Any) -> nn.Module:
    return Does(forward, assign=nn.Linear(64, 32), centres=nn.Parameter(x(32, 64)))


class Projected(nn.Module):
    def __init__(self, is_made_once: bool) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(64, 64), nn.Linear(64, 8) if is_made_once else None

    def forward(self, h: Tensor) -> Tensor:
        head = self.head or nn.Linear(64, 8)
        return head(self.layer(h).relu())


FIRST, SECOND = torch.tril_indices(32, 32, -1)
# A bug has no gain.
BUGS = [
    case(
        "relu in place",
        "in-place-before-skip",
        "block.branch.0",
        Wrapped(Residual(True)),
        Wrapped(Residual(False)),
        x(8, 64),
    ),
    case(
        "channels for eps",
        "large-eps",
        "block.1",
        Wrapped(nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16, 16), nn.ReLU())),
        Wrapped(nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16, eps=0.1), nn.ReLU())),
        x(2, 3, 12, 12),
    ),
    case(
        "momentum for eps",
        "large-eps",
        "block.1",
        Wrapped(nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64, 0.8), nn.LeakyReLU())),
        Wrapped(nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64, momentum=0.8), nn.LeakyReLU())),
        x(8, 32),
    ),
    case(
        "a flag for eps",
        "large-eps",
        "block.1",
        Wrapped(nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64, True), nn.GELU())),
        Wrapped(nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64, elementwise_affine=True), nn.GELU())),
        x(8, 32),
    ),
    case(
        "a head of every call",
        "layer-in-forward",
        "block",
        Wrapped(Projected(False)),
        Wrapped(Projected(True)),
        x(8, 64),
    ),
]


def by_degrees(self: Any, graph: Tensor, h: Tensor) -> Tensor:
    degrees = torch.diag(graph.sum(-1).rsqrt())
    return self.mix(degrees @ graph @ degrees @ h)


def by_rows_and_columns(self: Any, graph: Tensor, h: Tensor) -> Tensor:
    scale = graph.sum(-1).rsqrt()
    return self.mix((scale[:, None] * graph * scale) @ h)


def by_an_identity(self: Any, graphs: Tensor, h: Tensor) -> Tensor:
    """Graphs of a batch, a matrix of degrees for each; beside it, a mask without the diagonal, which is dense."""
    eye = torch.eye(graphs.shape[-1])
    without_loops = graphs * (eye == 0)
    return self.mix(torch.matmul((1 / graphs.sum(-1, keepdim=True)) * eye, without_loops) @ h)


def by_rows(self: Any, graphs: Tensor, h: Tensor) -> Tensor:
    without_loops = graphs * (torch.eye(graphs.shape[-1]) == 0)
    return self.mix((1 / graphs.sum(-1, keepdim=True)) * without_loops @ h)


def with_gains(self: Any, h: Tensor) -> Tensor:
    return self.mix(h @ torch.diag(torch.sigmoid(h.mean((0, 1)))))


def with_a_band(self: Any, h: Tensor) -> Tensor:
    """One above the diagonal, and the diagonal itself: a sum of two is dense."""
    gains = torch.sigmoid(h.mean((0, 1)))
    return self.mix(h @ (torch.diag(gains) + torch.diag(gains[1:], 1)))


def electrodes(activation: nn.Module) -> nn.Sequential:
    """The first layers of EEGNet."""
    time, space = nn.Conv2d(1, 8, (1, 32), padding=(0, 16), bias=False), nn.Conv2d(8, 16, (32, 1), groups=8, bias=False)
    return nn.Sequential(time, nn.BatchNorm2d(8), activation, space, nn.BatchNorm2d(16), nn.ELU(), nn.AvgPool2d((1, 4)))


def directions_of_each_point(self: Any, points: Tensor, rays: Tensor) -> Tensor:
    seen = self.encode(torch.sin(rays[:, None].expand(-1, points.shape[1], -1) * 3))
    return self.colour(torch.relu(points + seen))


def directions_of_each_ray(self: Any, points: Tensor, rays: Tensor) -> Tensor:
    return self.colour(torch.relu(points + self.encode(torch.sin(rays * 3))[:, None]))


class Listed(nn.Module):
    """Layers that `kind` holds."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.first, self.others = nn.Linear(16, 16), kind([nn.Linear(16, 16) for _ in range(3)])

    def forward(self, h: Tensor) -> Tensor:
        for layer in (self.first, *self.others):
            h = torch.relu(layer(h))
        return h


def by_last_row(self: Any, h: Tensor) -> Tensor:
    return self.head(self.states(h)[0])[:, -1]


def of_last_row(self: Any, h: Tensor) -> Tensor:
    return self.head(self.states(h)[0][:, -1])


def by_differences(self: Any, h: Tensor) -> Tensor:
    h = self.mix(h)
    return torch.exp(-((h[:, :, None] - h[:, None]) ** 2).sum(-1))


def by_distances(self: Any, h: Tensor) -> Tensor:
    h = self.mix(h)
    return torch.exp(-torch.cdist(h, h).square())


def differences_read_twice(self: Any, h: Tensor) -> Tensor:
    h = self.mix(h)
    apart = h[:, :, None] - h[:, None]
    return torch.exp(-(apart**2).sum(-1)) + apart.amax(-1)


CASES = [
    case("a list of layers", "unregistered-layers", "", Listed(list), Listed(nn.ModuleList), x(4, 16)),
    case(
        "directions of rays",
        "expanded-rows",
        "",
        Does(directions_of_each_point, encode=nn.Linear(24, 96), colour=nn.Linear(96, 3)),
        Does(directions_of_each_ray, encode=nn.Linear(24, 96), colour=nn.Linear(96, 3)),
        x(256, 64, 96),
        x(256, 24),
    ),
    case(
        "words of all steps",
        "unread-rows",
        "head",
        Does(by_last_row, states=nn.LSTM(32, 64, batch_first=True), head=nn.Linear(64, 1000)),
        Does(of_last_row, states=nn.LSTM(32, 64, batch_first=True), head=nn.Linear(64, 1000)),
        x(8, 64, 32),
    ),
    case(
        "differences of pairs",
        "pairwise-differences",
        "",
        Does(by_differences, mix=nn.Linear(16, 16)),
        Does(by_distances, mix=nn.Linear(16, 16)),
        x(2, 256, 16),
    ),
    case(
        "differences that are needed",
        "pairwise-differences",
        "",
        Does(by_differences, mix=nn.Linear(16, 16)),
        Does(differences_read_twice, mix=nn.Linear(16, 16)),
        x(2, 256, 16),
    ),
    case(
        "time before electrodes",
        "convolution-order",
        "0",
        electrodes(nn.Identity()),
        electrodes(nn.ELU()),
        x(4, 1, 32, 256),
    ),
    case(
        "degrees of a graph",
        "diagonal-product",
        "",
        Does(by_degrees, mix=nn.Linear(16, 16)),
        Does(by_rows_and_columns, mix=nn.Linear(16, 16)),
        x(200, 200).abs(),
        x(200, 16),
    ),
    case(
        "an identity that is scaled",
        "diagonal-product",
        "",
        Does(by_an_identity, mix=nn.Linear(16, 16)),
        Does(by_rows, mix=nn.Linear(16, 16)),
        x(4, 120, 120).abs(),
        x(4, 120, 16),
    ),
    case(
        "gains of channels",
        "diagonal-product",
        "",
        Does(with_gains, mix=nn.Linear(96, 8)),
        Does(with_a_band, mix=nn.Linear(96, 8)),
        x(4, 100, 96),
    ),
    case(
        "messages along edges",
        "linear-after-gather",
        "message",
        Does(along_edges, message=nn.Linear(128, 64)),
        Does(before_edges, message=nn.Linear(128, 128)),
        x(100, 64),
        ids(2, 2000, high=100),
    ),
    case("residuals", "weighted-differences", "", codebook(residuals), codebook(residuals_at_once), x(4, 100, 64)),
    case(
        "pairs by list",
        "table-from-list",
        "",
        Does(pairs_by_list),
        Does(pairs_by_table, first=FIRST, second=SECOND),
        x(2, 32, 16),
    ),
]
