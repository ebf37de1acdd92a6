"""Layers behind gathers, sums of differences, tables from lists, and activations that overwrite a skip connection."""

from __future__ import annotations

from copy import deepcopy
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


class Skip(nn.Module):
    """`first` decides what the branch starts with; `form` how the sum is written."""

    def __init__(self, first: nn.Module, form: str = "plus") -> None:
        super().__init__()
        self.form = form
        self.branch = nn.Sequential(first, nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8))

    def forward(self, h: Tensor) -> Tensor:
        out = self.branch(h)
        if self.form == "in place":
            out += h
            return out
        return h + out


def network(*blocks: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 8, 1), *blocks)


IMAGE = x(2, 3, 16, 16)


@pytest.mark.parametrize("form", ["plus", "in place"])
@pytest.mark.parametrize("first", [nn.ReLU(True), nn.LeakyReLU(0.1, True), nn.SiLU(True), nn.ELU(inplace=True)])
def test_an_activation_that_overwrites_the_input_of_a_skip_connection_is_a_bug(first: nn.Module, form: str) -> None:
    model = network(Skip(deepcopy(first), form)).eval()  # the code of the advice changes it
    (found,) = of_rule(model, "in-place-before-skip", IMAGE)

    assert (found.kind, found.where.module) == ("bug", "1.branch.0")
    assert found.code is not None
    with torch.no_grad():
        before = model(IMAGE)
        exec(found.code, {"model": model, "torch": torch})
        hidden = model[0](IMAGE)
        assert torch.equal(model(IMAGE), hidden + model.get_submodule("1.branch")(hidden))
        assert not torch.allclose(before, model(IMAGE))


class PreActivation(nn.Module):
    """Both paths get the activation on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.act, self.conv = nn.ReLU(True), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, h: Tensor) -> Tensor:
        h = self.act(h)
        return h + self.conv(h)


class TwoResults(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act, self.conv = nn.ReLU(True), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        h = self.act(h)
        return h, self.conv(h)


def adds_both(self: Any, h: Tensor) -> Tensor:
    one, other = self.both(h)
    return one + other


class SharedActivation(nn.Module):
    """One module ends the first block, whose result is meant to be activated, and is in the branch too."""

    def __init__(self) -> None:
        super().__init__()
        shared = nn.ELU(inplace=True)
        self.first = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), shared)
        self.branch = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), shared)

    def forward(self, h: Tensor) -> Tensor:
        h = self.first(h)
        return h + self.branch(h * 0.5)


@pytest.mark.parametrize(
    "blocks",
    [
        (SharedActivation(),),
        (Skip(nn.ReLU()),),
        (nn.ReLU(), Skip(nn.ReLU(True))),
        (nn.ReLU(), nn.MaxPool2d(2), Skip(nn.ReLU(True))),
        (PreActivation(),),
        (nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(True), nn.Conv2d(8, 8, 3)),),
        (Skip(nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(True))),),
        (Does(adds_both, both=TwoResults()),),
    ],
    ids=["shared", "out of place", "numbers from 0 on", "pooled", "both paths", "no skip", "behind a norm", "returned"],
)
def test_other_activations_in_place_are_fine(blocks: tuple[nn.Module, ...]) -> None:
    assert of_rule(network(*blocks), "in-place-before-skip", IMAGE) == []


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


def cluster_by_cluster(self: Any, h: Tensor) -> Tensor:
    weight = self.assign(h).softmax(-1)
    return torch.stack([((h - self.centres[k]) * weight[..., k, None]).sum(1) for k in range(16)], 1)


def spread(_: Any, h: Tensor) -> Tensor:
    centred = h - h.mean(1, keepdim=True)
    return (centred * centred).sum(1)


def also_returned(_: Any, h: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    centred = h - h.mean(1, keepdim=True)
    return (centred * weight[..., None]).sum(1), centred


def scaled_by_channel(_: Any, h: Tensor, scale: Tensor) -> Tensor:
    return ((h - h.mean(1, keepdim=True)) * scale).sum(1)


def shifted_by_sample(_: Any, h: Tensor, shift: Tensor, items: Tensor) -> Tensor:
    """The shift varies along the dimension that is summed up."""
    return ((h + shift) * items).sum(-1)


def test_weighted_differences_of_a_loop_are_one_piece_of_advice() -> None:
    model = Does(cluster_by_cluster, assign=nn.Linear(64, 16), centres=nn.Parameter(x(16, 64)))
    (found,) = of_rule(model, "weighted-differences", x(4, 200, 64))

    assert found.evidence["count"] == 16


@pytest.mark.parametrize(
    ("forward", "inputs"),
    [
        (spread, (x(4, 100, 64),)),
        (also_returned, (x(4, 100, 64), x(4, 100))),
        (scaled_by_channel, (x(4, 100, 64), x(64))),
        (shifted_by_sample, (x(16, 500, 100), x(16, 1, 100), x(500, 100))),
    ],
)
def test_other_sums_of_differences_stay(forward: Any, inputs: tuple[Tensor, ...]) -> None:
    assert of_rule(Does(forward), "weighted-differences", *inputs) == []


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        (lambda h, centres: h - centres, "matmul(weight, x) - weight.sum() * centre"),
        (lambda h, centres: h + centres, "matmul(weight, x) + weight.sum() * centre"),
        (lambda h, centres: centres - h, "weight.sum() * centre - matmul(weight, x)"),
    ],
)
def test_the_signs_of_weighted_terms_are_those_of_the_model(terms: Any, words: str) -> None:
    def forward(m: Any, h: Tensor) -> Tensor:
        return (terms(h.unsqueeze(2), m.centres) * m.assign(h).softmax(-1).unsqueeze(-1)).sum(1)

    parts = {"assign": nn.Linear(64, 16), "centres": nn.Parameter(x(16, 64))}
    (found,) = of_rule(Does(forward, **parts), "weighted-differences", x(4, 200, 64))
    assert words in found.recommendation


# --- table-from-list


def appended(self: Any, h: Tensor) -> Tensor:
    places = []
    for row in range(h.size(1) // self.step):
        places.append(row * self.step)
    return h[:, torch.LongTensor(places)]


def of_values(_: Any, h: Tensor) -> Tensor:
    best = [int(row.argmax()) for row in h[0]]
    return h[:, :, torch.tensor(best)]


def of_argument(_: Any, h: Tensor, order: list[int]) -> Tensor:
    return h[:, torch.tensor([at * 1 for at in order])]


def of_state(self: Any, h: Tensor) -> Tensor:
    self.order = self.order[1:] + self.order[:1]
    return h[:, torch.tensor(self.order)]


def test_a_list_of_shapes_is_a_table() -> None:
    (found,) = of_rule(Does(appended, step=2), "table-from-list", x(2, 64, 8))

    assert found.evidence["elements"] == 32
    assert 0 < gain_of(found).low < gain_of(found).high < 1


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (Does(of_values), (x(2, 64, 8),)),
        (Does(of_argument), (x(2, 64, 8), list(range(64)))),
        (Does(of_state, order=list(range(64))), (x(2, 64, 8),)),
    ],
    ids=["values", "an argument", "state"],
)
def test_lists_of_data_are_not_tables(model: nn.Module, inputs: tuple[Any, ...]) -> None:
    assert of_rule(model, "table-from-list", *inputs) == []
