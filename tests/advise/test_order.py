"""Layers behind gathers, sums of differences, tables from lists, and activations that overwrite a skip connection."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.advise.fault_classes import Does, ids, x
from tests.advise.planted import gain_of, said, seen
from torchgauge.advise import Advice


def of_rule(model: nn.Module, rule: str, *inputs: Tensor) -> list[Advice]:
    return [advice for advice in said(seen(model, inputs=inputs)) if advice.rule == rule]


# --- in-place-before-skip


def network(*blocks: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 8, 1), *blocks)


IMAGE = x(2, 3, 16, 16)


class PreActivation(nn.Module):
    """Both paths get the activation on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.act, self.conv = nn.ReLU(True), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, h: Tensor) -> Tensor:
        h = self.act(h)
        return h + self.conv(h)


# --- linear-after-gather


def neighbours(self: Any, points: Tensor, near: Tensor) -> Tensor:
    """Groups of a point cloud, by `gather` with an expanded index."""
    rows = near.flatten(1)[..., None].expand(-1, -1, points.shape[-1])
    return torch.relu(self.layer(torch.gather(points, 1, rows))).unflatten(1, near.shape[1:]).amax(2)


def picked(self: Any, nodes: Tensor, at: Tensor) -> Tensor:
    return torch.relu(self.layer(nodes.index_select(0, at)))


def with_lengths(self: Any, nodes: Tensor, at: Tensor, lengths: Tensor) -> Tensor:
    return torch.relu(self.layer(torch.cat([nodes[at], lengths], -1)))


@pytest.mark.parametrize(
    ("forward", "width", "inputs"),
    [
        (neighbours, 64, (x(2, 128, 64), ids(2, 64, 16, high=128))),
        (picked, 64, (x(50, 64), ids(1000, high=50))),
        (with_lengths, 80, (x(50, 64), ids(1000, high=50), x(1000, 16))),
    ],
)
def test_a_layer_runs_before_its_rows_are_gathered(forward: Any, width: int, inputs: tuple[Tensor, ...]) -> None:
    (found,) = of_rule(Does(forward, layer=nn.Linear(width, 64)), "linear-after-gather", *inputs)

    assert found.where.module == "layer"
    assert found.evidence["gathered_channels"] == 64
    assert 0 < gain_of(found).low < gain_of(found).high < 1


def also_read(self: Any, nodes: Tensor, at: Tensor) -> Tensor:
    rows = nodes[at]
    return self.layer(rows) * rows


def of_channels(self: Any, nodes: Tensor, at: Tensor) -> Tensor:
    return self.layer(nodes[:, at])


@pytest.mark.parametrize(
    ("forward", "layer", "inputs"),
    [
        (picked, nn.Linear(64, 64), (x(1000, 64), ids(900, high=1000))),
        (picked, nn.Linear(4, 256), (x(50, 4), ids(1000, high=50))),
        (also_read, nn.Linear(64, 64), (x(50, 64), ids(1000, high=50))),
        (of_channels, nn.Linear(64, 64), (x(1000, 16), ids(64, high=16))),
    ],
    ids=["fewer rows", "much wider results", "rows are read", "channels"],
)
def test_other_layers_behind_gathers_stay(forward: Any, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    assert of_rule(Does(forward, layer=layer), "linear-after-gather", *inputs) == []


# --- weighted-differences


def spread(_: Any, h: Tensor) -> Tensor:
    centred = h - h.mean(1, keepdim=True)
    return (centred * centred).sum(1)


# --- table-from-list


def of_state(self: Any, h: Tensor) -> Tensor:
    self.order = self.order[1:] + self.order[:1]
    return h[:, torch.tensor(self.order)]
