"""Zeros around a tensor that only a convolution reads."""

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


def of_rule(model: nn.Module, *inputs: Tensor) -> list[Advice]:
    found = said(seen(model.eval(), inputs=inputs))
    return [advice for advice in found if advice.rule == "padding-before-convolution"]


def test_a_padding_layer_becomes_the_padding_of_the_convolution() -> None:
    model = nn.Sequential(
        nn.ZeroPad2d((2, 2, 8, 8)), nn.Conv2d(4, 8, 5, dilation=(4, 1)), nn.ReLU(),
        nn.ConstantPad2d(1, 0.0), nn.Conv2d(8, 8, 3, padding=(0, 1), stride=2),
    )  # fmt: skip
    given = x(2, 4, 24, 40)

    (found,) = of_rule(model, given)

    assert found.evidence["count"] == 2
    assert found.code is not None
    assert "('3', '4', (1, 2))" in found.code
    check_code(found, model, (given,))


def by_function(self: Any, image: Tensor) -> Tensor:
    padded = F.pad(image, (1, 1, 1, 1))
    return torch.relu(self.one(padded)) + torch.tanh(self.two(padded))


def test_two_convolutions_may_read_what_is_padded() -> None:
    (found,) = of_rule(Does(by_function, one=nn.Conv2d(4, 8, 3), two=nn.Conv2d(4, 8, 3)), x(2, 4, 24, 40))
    assert found.code is None
    assert found.where.source is not None


def test_products_with_zeros_are_part_of_the_gain() -> None:
    """Few of a narrow kernel's products are with zeros, a third of those of a dilated one."""
    narrow, wide = (
        of_rule(
            nn.Sequential(nn.ZeroPad2d((0, 0, 2 * step, 2 * step)), nn.Conv2d(16, 16, (5, 1), dilation=(step, 1))),
            x(1, 16, 48, 64),
        )
        for step in (1, 12)
    )
    assert gain_of(wide[0]).low > 2 * gain_of(narrow[0]).low


def causal(self: Any, sound: Tensor) -> Tensor:
    return self.one(F.pad(sound, (4, 0)))


def reflected(self: Any, sound: Tensor) -> Tensor:
    return self.one(F.pad(sound, (2, 2), mode="reflect"))


def of_ones(self: Any, sound: Tensor) -> Tensor:
    return self.one(F.pad(sound, (2, 2), value=1.0))


def also_read(self: Any, sound: Tensor) -> Tensor:
    padded = F.pad(sound, (2, 2))
    return self.one(padded) + padded[..., 2:-2]


def over_channels(self: Any, sound: Tensor) -> Tensor:
    return self.two(F.pad(sound, (2, 2, 1, 1)))


def transposed(self: Any, sound: Tensor) -> Tensor:
    return self.three(F.pad(sound, (2, 2)))


def for_products(self: Any, sound: Tensor) -> Tensor:
    return self.four(F.pad(sound, (2, 2)))


@pytest.mark.parametrize("forward", [causal, reflected, of_ones, also_read, over_channels, transposed, for_products])
def test_other_padding_stays(forward: Any) -> None:
    layers = {"one": nn.Conv1d(4, 4, 5), "two": nn.Conv1d(6, 4, 5), "three": nn.ConvTranspose1d(4, 4, 5)}
    layers["four"] = nn.Conv1d(4, 4, 1)
    assert not of_rule(Does(forward, **layers), x(2, 4, 200))


@pytest.mark.parametrize("is_always_padded", [True, False])
def test_a_convolution_that_also_gets_what_is_not_padded_stays(is_always_padded: bool) -> None:
    def forward(m: Any, small: Tensor, large: Tensor) -> Tensor:
        other = m.pad(small.flip(-1)) if is_always_padded else large
        return torch.relu(m.conv(m.pad(small))) + m.conv(torch.tanh(other) if not is_always_padded else other)

    model = Does(forward, pad=nn.ZeroPad2d(1), conv=nn.Conv2d(4, 4, 3))
    found = {advice.rule for advice in said(seen(model, inputs=(x(1, 4, 30, 30), x(1, 4, 32, 32))))}
    assert ("padding-before-convolution" in found) is is_always_padded
