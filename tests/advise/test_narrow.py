"""Pointwise layers before poolings, and narrow layers over one tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.advise.fault_classes import Does, x
from tests.advise.planted import gain_of, said, seen
from torchgauge.advise import advise


def rules_of(model: nn.Module, *inputs: Tensor) -> set[str]:
    return {advice.rule for advice in said(seen(model.eval(), inputs=inputs))}


IMAGE = (2, 32, 32, 32)


def shrinking(shrink: Callable[[Tensor], Tensor], kernel_size: int = 1, **of_layer: Any) -> nn.Module:
    layer = nn.Conv2d(32, 64, kernel_size, **of_layer)
    return Does(lambda self, h: shrink(self.layer(h)), layer=layer)


@pytest.mark.parametrize(
    "shrink",
    [
        lambda h: F.avg_pool2d(h, 2),
        nn.AdaptiveAvgPool2d(4),
        lambda h: h.mean((2, 3)),
        lambda h: F.interpolate(h, scale_factor=0.5, mode="bilinear"),
    ],
)
def test_a_pooling_may_come_before_a_pointwise_layer(shrink: Callable[[Tensor], Tensor]) -> None:
    assert "pointwise-before-pooling" in rules_of(shrinking(shrink), x(*IMAGE))


@pytest.mark.parametrize(
    "model",
    [
        shrinking(lambda h: F.max_pool2d(h, 2)),
        shrinking(lambda h: F.avg_pool2d(torch.relu(h), 2)),
        shrinking(lambda h: F.avg_pool2d(h, 3, stride=2, padding=1)),
        shrinking(lambda h: F.avg_pool2d(h, 2), kernel_size=3),
        shrinking(lambda h: h.mean(1)),
        shrinking(lambda h: F.interpolate(h, scale_factor=2)),
        Does(lambda self, h: self.layer(F.avg_pool2d(h, 2)), layer=nn.Conv2d(32, 64, 1)),
    ],
)
def test_other_orders_are_left_alone(model: nn.Module) -> None:
    assert "pointwise-before-pooling" not in rules_of(model, x(*IMAGE))


def grasping(self: Any, h: Tensor) -> tuple[Tensor, ...]:
    h = torch.relu(self.body(h))
    place = self.place(h)
    angle = self.angle(h)
    width = self.width(h)
    return place, angle, width


def joined(self: Any, h: Tensor) -> tuple[Tensor, ...]:
    return self.heads(torch.relu(self.body(h))).split([1, 2, 1], 1)


def in_turn(self: Any, h: Tensor) -> Tensor:
    h = torch.relu(self.body(h))
    h = h + self.place(h)
    h = h + self.angle(h)[:, :1]
    return h + self.width(h)


def heads(width: int) -> dict[str, nn.Module]:
    sizes = {"place": width, "angle": 2 * width, "width": width}
    return {name: nn.Conv2d(32, size, 1) for name, size in sizes.items()}


def test_narrow_heads_of_one_map_are_one_layer() -> None:
    body = nn.Conv2d(3, 32, 3)
    given = x(1, 3, 64, 64)

    assert "narrow-heads" in rules_of(Does(grasping, body=body, **heads(1)), given)
    assert "narrow-heads" not in rules_of(Does(joined, body=body, heads=nn.Conv2d(32, 4, 1)), given)
    assert "narrow-heads" not in rules_of(Does(in_turn, body=body, **heads(1)), given)
    assert "narrow-heads" not in rules_of(Does(grasping, body=body, **heads(16)), given)


def by_columns(self: Any, h: Tensor) -> tuple[Tensor, ...]:
    place = h @ self.place
    angle = h @ self.angle
    width = h @ self.width
    return place, angle, width


def test_wide_products_gain_less_by_being_joined_than_narrow_ones() -> None:
    """Those of many columns fill the blocks of their kernel already: what is left is that each reads the tensor."""
    parts = []
    for columns in (4, 128):
        weights = {name: nn.Parameter(x(2048, columns)) for name in ("place", "angle", "width")}
        evidence = seen(Does(by_columns, **weights), inputs=(x(1500, 2048),))
        (found,) = [advice for advice in advise(evidence, all_advice=True) if advice.rule == "narrow-heads"]
        parts.append(gain_of(found))

    assert parts[0].low > 3 * parts[1].low
    assert parts[1].high < 0.3


def test_points_outside_of_the_image_have_no_bias() -> None:
    grid = 3 * torch.rand(2, 8, 8, 2) - 1.5
    model = shrinking(lambda h: F.grid_sample(h, grid, align_corners=False))

    assert "pointwise-before-pooling" not in rules_of(model, x(*IMAGE))
