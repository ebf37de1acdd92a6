"""Work on tensors that repeat a smaller one: layers over repeated vectors, products of expanded operands."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.advise.fault_classes import Does, x
from tests.advise.planted import said, seen
from torchgauge.advise import Advice


def of_rule(model: nn.Module, rule: str, *inputs: Tensor) -> list[Advice]:
    return [advice for advice in said(seen(model, inputs=inputs)) if advice.rule == rule]


def speaker_beside_frames(self: Any, frames: Tensor, speaker: Tensor) -> Tensor:
    """A voice model: the embedding of the speaker at every frame."""
    repeated = speaker[:, None].expand(-1, frames.shape[1], -1)
    return torch.relu(self.layer(torch.cat([frames, repeated], -1)))


def scene_beside_pixels(self: Any, image: Tensor) -> Tensor:
    """The mean of an image at every pixel, by `repeat`, before a 1×1 convolution."""
    pooled = image.mean((2, 3), keepdim=True).repeat(1, 1, *image.shape[2:])
    return torch.relu(self.layer(torch.cat((image, pooled), dim=1)))


def query_beside_keys(self: Any, query: Tensor, keys: Tensor) -> Tensor:
    both = torch.cat((query.unsqueeze(0).repeat(keys.shape[0], 1, 1), keys), dim=2)
    return torch.softmax(self.score(torch.tanh(self.layer(both))), 0)


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (Does(speaker_beside_frames, layer=nn.Linear(64 + 64, 128)), (x(4, 200, 64), x(4, 64))),
        (Does(scene_beside_pixels, layer=nn.Conv2d(64, 64, 1)), (x(2, 32, 40, 40),)),
        (Does(query_beside_keys, layer=nn.Linear(128, 64), score=nn.Linear(64, 1)), (x(8, 64), x(60, 8, 64))),
    ],
    ids=["expand", "repeat", "attention of a decoder"],
)
def test_a_layer_over_a_repeated_vector_is_split(model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    (found,) = of_rule(model, "repeated-input", *inputs)

    assert found.where.module == "layer"
    assert found.expected_gain is not None
    assert found.expected_gain.low > 0.05


def two_branches(self: Any, one: Tensor, other: Tensor) -> Tensor:
    return torch.relu(self.layer(torch.cat([one, other], -1)))


def smoothed(self: Any, image: Tensor) -> Tensor:
    pooled = image.mean((2, 3), keepdim=True).expand_as(image)
    return torch.relu(self.layer(torch.cat((image, pooled), dim=1)))


def also_returned(self: Any, frames: Tensor, speaker: Tensor) -> tuple[Tensor, Tensor]:
    joined = torch.cat([frames, speaker[:, None].expand(-1, frames.shape[1], -1)], -1)
    return torch.relu(self.layer(joined)), joined


def repeated_by_channel(self: Any, frames: Tensor, level: Tensor) -> Tensor:
    """One number for all channels: there is no vector to multiply with."""
    return torch.relu(self.layer(torch.cat([frames, level[..., None].expand(-1, -1, 64)], -1)))


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (Does(two_branches, layer=nn.Linear(128, 64)), (x(4, 200, 64), x(4, 200, 64))),
        (Does(smoothed, layer=nn.Conv2d(64, 64, 3, padding=1)), (x(2, 32, 40, 40),)),
        (Does(also_returned, layer=nn.Linear(128, 64)), (x(4, 200, 64), x(4, 64))),
        (Does(repeated_by_channel, layer=nn.Linear(128, 64)), (x(4, 200, 64), x(4, 200))),
    ],
    ids=["two tensors", "a window of 3×3", "also returned", "repeated along the channels"],
)
def test_other_joined_inputs_stay(model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    assert of_rule(model, "repeated-input", *inputs) == []


def test_a_matmul_that_copies_an_operand_for_each_sample_is_named() -> None:
    def by_position(self: Any, h: Tensor) -> Tensor:
        return torch.matmul(self.weight, h[:, :, :, None]).squeeze(-1)

    def by_einsum(self: Any, h: Tensor) -> Tensor:
        return torch.einsum("poi,bpi->bpo", self.weight, h)

    weight = nn.Parameter(x(200, 32, 32))
    (found,) = of_rule(Does(by_position, weight=weight), "broadcast-matmul", x(8, 200, 32))

    assert found.evidence["times"] == 8
    assert found.evidence["copied_bytes"] == 8 * weight.numel() * 4
    assert of_rule(Does(by_einsum, weight=weight), "broadcast-matmul", x(8, 200, 32)) == []


def test_products_of_all_pairs_that_are_added_up_are_a_matmul() -> None:
    def similarity(_: Any, one: Tensor, other: Tensor) -> Tensor:
        return (one[:, :, None] * other[:, None]).sum(-1)

    def weighted(_: Any, values: Tensor, weights: Tensor) -> Tensor:
        return (values * weights[..., None]).sum(1)

    def outer(_: Any, one: Tensor, other: Tensor) -> Tensor:
        return (one[:, :, None] * other[:, None]).sum(1)

    (found,) = of_rule(Does(similarity), "product-then-sum", x(4, 50, 64), x(4, 60, 64))

    assert found.evidence["shape"] == [4, 50, 60, 64]
    # One pass over the values is what a product would take too; the sum of an outer product factors otherwise.
    assert of_rule(Does(weighted), "product-then-sum", x(4, 50, 64), x(4, 50)) == []
    assert of_rule(Does(outer), "product-then-sum", x(4, 50, 64), x(4, 60, 64)) == []


def counted(self: Any, image: Tensor, valid: Tensor) -> Tensor:
    return self.layer(image * valid) / self.count(valid).clamp(min=1)


def box(self: Any, image: Tensor, valid: Tensor) -> Tensor:
    ones = torch.ones(32, 16, 3, 3)
    return self.layer(image * valid) / F.conv2d(valid, ones, padding=1).clamp(min=1)


def summing(is_frozen: bool) -> nn.Conv2d:
    layer = nn.Conv2d(16, 32, 3, padding=1, bias=False)
    nn.init.ones_(layer.weight)
    return layer.requires_grad_(not is_frozen)


def test_equal_filters_of_a_frozen_convolution_are_one() -> None:
    layer, inputs = nn.Conv2d(16, 32, 3, padding=1), (x(2, 16, 32, 32), torch.ones(2, 16, 32, 32))

    (found,) = of_rule(Does(counted, layer=layer, count=summing(is_frozen=True)), "equal-filters", *inputs)
    assert (found.where.module, found.where.weight) == ("count", "count.weight")
    assert of_rule(Does(box, layer=layer), "equal-filters", *inputs)
    assert of_rule(Does(counted, layer=layer, count=summing(is_frozen=False)), "equal-filters", *inputs) == []
    frozen = nn.Conv2d(16, 32, 3, padding=1, bias=False).requires_grad_(False)
    assert of_rule(Does(counted, layer=layer, count=frozen), "equal-filters", *inputs) == []
