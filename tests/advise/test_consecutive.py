"""Products in a row: layers to merge, products in a cheaper order, blocks on a diagonal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.advise.fault_classes import Does, x
from tests.advise.pasting import check_code
from tests.advise.planted import gain_of, said, seen
from torchgauge.advise import Advice
from torchgauge.report.content.advice import place_text


def of_rule(model: nn.Module, rule: str, *inputs: Any) -> list[Advice]:
    return [advice for advice in said(seen(model, inputs=inputs)) if advice.rule == rule]


def classified(self: Any, words: Tensor) -> Tensor:
    """A classifier with a wide layer in front of the labels, and dropout between the two."""
    hidden = torch.relu(self.encode(words)).mean(1)
    return self.labels(self.drop(self.wide(hidden)))


def upsampled(self: Any, image: Tensor) -> tuple[Tensor, Tensor]:
    """Two transposed convolutions, each read by the same 1×1 convolution."""
    features = torch.relu(self.encode(image))
    return self.head(self.up(features)), self.head(self.again(features))


def narrowed(self: Any, sound: Tensor) -> Tensor:
    return torch.tanh(self.head(self.wide(sound)))


MERGED = [
    (
        Does(
            classified,
            encode=nn.Linear(32, 128),
            wide=nn.Linear(128, 1024),
            drop=nn.Dropout(),
            labels=nn.Linear(1024, 5),
        ),
        x(16, 20, 32),
        ["wide", "labels"],
    ),
    (
        Does(
            upsampled,
            encode=nn.Conv2d(3, 32, 3),
            up=nn.ConvTranspose2d(32, 64, 2, stride=2),
            again=nn.ConvTranspose2d(32, 64, 4, stride=4),
            head=nn.Conv2d(64, 2, 1, bias=False),
        ),
        x(1, 3, 34, 34),
        ["again", "head"],
    ),
    (
        Does(narrowed, wide=nn.Conv1d(8, 96, 5, padding=2, dilation=1, bias=False), head=nn.Conv1d(96, 4, 1)),
        x(2, 8, 400),
        ["wide", "head"],
    ),
]


@pytest.mark.parametrize(("model", "given", "layers"), MERGED, ids=["dropout between", "transposed", "a kernel of 5"])
def test_two_layers_without_an_activation_are_merged(model: nn.Module, given: Tensor, layers: list[str]) -> None:
    model.eval()
    (found,) = of_rule(model, "consecutive-layers", given)

    assert found.evidence["layers"] == layers
    assert gain_of(found).low > 0.1
    assert "inference only" in found.risk
    check_code(found, model, (given,))


def over_time_and_electrodes(stride: int, padding: int, *between: nn.Module, behind: int = 0) -> nn.Sequential:
    """A convolution along the last dimension, then one across the other."""
    first = nn.Conv2d(2, 24, (1, 9), (1, stride), (0, padding), bias=not behind)
    return nn.Sequential(first, *between, nn.Conv2d(24, 24, (12, 3), padding=(behind, 0)), nn.ELU())


@pytest.mark.parametrize(("stride", "padding", "behind"), [(1, 0, 0), (2, 3, 0), (1, 4, 2)])
def test_convolutions_along_two_dimensions_are_merged(stride: int, padding: int, behind: int) -> None:
    model, given = over_time_and_electrodes(stride, padding, behind=behind).eval(), x(4, 2, 12, 200)

    (found,) = of_rule(model, "consecutive-layers", given)

    assert found.evidence["layers"] == ["0", "1"]
    assert found.code is not None
    check_code(found, model, (given,))


@pytest.mark.parametrize(
    "model",
    [
        over_time_and_electrodes(1, 0, nn.ELU()),
        # Zeros that the second pads are not what the first makes of zeros: it has a bias.
        nn.Sequential(nn.Conv2d(2, 24, (1, 9)), nn.Conv2d(24, 24, (12, 1), padding=(2, 0))),
        nn.Sequential(nn.Conv2d(16, 16, 3), nn.Conv2d(16, 16, 3)),  # one kernel of 5×5 costs more
    ],
    ids=["an activation between", "padding behind a bias", "two kernels of 3×3"],
)
def test_other_convolutions_in_a_row_stay(model: nn.Module) -> None:
    assert not of_rule(model.eval(), "consecutive-layers", x(4, len(model[0].weight[0]), 12, 200))  # type: ignore[index]


def test_the_merged_layer_gives_the_same_result() -> None:
    model, given, _ = MERGED[2]
    (found,) = of_rule(model.eval(), "consecutive-layers", given)

    assert found.code is not None
    assert "Identity" in found.code
    # A layer that other places call too cannot be changed for one of them.
    assert all(advice.code is None for advice in of_rule(MERGED[1][0].eval(), "consecutive-layers", MERGED[1][1]))


def bottleneck(self: Any, h: Tensor) -> Tensor:
    return self.second(self.first(h))


def with_activation(self: Any, h: Tensor) -> Tensor:
    return self.second(F.gelu(self.first(h)))


def read_twice(self: Any, h: Tensor) -> Tensor:
    wide = self.first(h)
    return self.second(wide) + wide.mean()


def over_positions(self: Any, h: Tensor) -> Tensor:
    """The second layer mixes the positions, of which the first treats each alone."""
    return self.second(self.first(h).flatten(1))


@pytest.mark.parametrize(
    ("model", "given"),
    [
        (Does(bottleneck, first=nn.Linear(256, 8), second=nn.Linear(8, 256)), x(64, 256)),
        (Does(with_activation, first=nn.Linear(64, 512), second=nn.Linear(512, 8)), x(64, 64)),
        (Does(read_twice, first=nn.Linear(64, 512), second=nn.Linear(512, 8)), x(64, 64)),
        (Does(over_positions, first=nn.Linear(64, 32), second=nn.Linear(32 * 16, 8)), x(64, 16, 64)),
        (Does(bottleneck, first=nn.Conv2d(8, 64, 1), second=nn.Conv2d(64, 4, 3, padding=1)), x(1, 8, 32, 32)),
        (Does(bottleneck, first=nn.Conv2d(32, 32, 3, groups=32), second=nn.Conv2d(32, 64, 1)), x(1, 32, 32, 32)),
    ],
    ids=["low rank", "activation", "two readers", "flattened", "bias behind padding", "depthwise"],
)
def test_other_layers_in_a_row_stay(model: nn.Module, given: Tensor) -> None:
    assert of_rule(model.eval(), "consecutive-layers", given) == []


def test_layers_are_not_merged_while_they_are_trained() -> None:
    model, given, _ = MERGED[0]
    evidence = seen(model, inputs=(given,), mode="train")

    assert [advice for advice in said(evidence) if advice.rule == "consecutive-layers"] == []


def graphs(count: int) -> tuple[Tensor, ...]:
    return tuple(x(20 + at % 3, 20 + at % 3) for at in range(count))


def of_pairs(self: Any, nodes: Tensor) -> Tensor:
    return self.score(nodes, nodes.roll(1, 1))


def changed(self: Any, nodes: Tensor, graph: Tensor) -> Tensor:
    """No longer the identity, or a part of it: rows that are chosen."""
    weights = torch.eye(graph.shape[0])
    weights[0] = 0.5
    chosen = torch.eye(graph.shape[0])[:20]
    return self.out(torch.cat([weights @ nodes, graph @ nodes, graph @ nodes], -1))[:, :20] + chosen @ nodes


def test_a_bilinear_layer_takes_the_time_of_the_product_inside() -> None:
    """Its result of one column says nothing about the product with the weight."""
    evidence = seen(Does(of_pairs, score=nn.Bilinear(256, 256, 1)), inputs=(x(1, 1000, 256),))
    plain = seen(nn.Linear(256, 256), inputs=(x(1000, 256),))
    bilinear_s, plain_s = (
        next(each.times.seconds[op.index] for op in each.forward if op.cost.macs) for each in (evidence, plain)
    )
    assert bilinear_s > plain_s / 2


@pytest.mark.parametrize(
    ("layers", "place"),
    [
        (["net.0", "net.1"], "net.0 + 1 and 2 more, model.py:7"),
        (["net.0", "head"], "net.0 + head and 2 more, model.py:7"),
        (["net.0", "net.1", "net.2", "net.3"], "net.0 + 1 + 2 others and 2 more, model.py:7"),
        (["net.0", ""], "net.0 and 2 more, model.py:7"),
    ],
)
def test_layers_that_are_joined_are_named_together(layers: list[str], place: str) -> None:
    row: Any = {
        "where": {"weight": None, "module": "net.0", "source": "model.py:7"},
        "evidence": {"count": 3, "layers": layers},
    }

    assert place_text(row) == place
