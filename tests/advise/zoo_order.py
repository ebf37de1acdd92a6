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


class Listed(nn.Module):
    """Layers that `kind` holds."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.first, self.others = nn.Linear(16, 16), kind([nn.Linear(16, 16) for _ in range(3)])

    def forward(self, h: Tensor) -> Tensor:
        for layer in (self.first, *self.others):
            h = torch.relu(layer(h))
        return h


CASES = [
    case("a list of layers", "unregistered-layers", "", Listed(list), Listed(nn.ModuleList), x(4, 16)),
    case(
        "messages along edges",
        "linear-after-gather",
        "message",
        Does(along_edges, message=nn.Linear(128, 64)),
        Does(before_edges, message=nn.Linear(128, 128)),
        x(100, 64),
        ids(2, 2000, high=100),
    ),
]
