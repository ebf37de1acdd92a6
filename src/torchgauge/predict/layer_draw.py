"""Layers of one op each with random sizes, as models have them: what a calibration measures."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn
from torch.nn import functional

T = TypeVar("T")
Drawn = tuple[nn.Module, tuple[torch.Tensor, ...]]

_POINTWISE: tuple[Callable[..., torch.Tensor], ...] = (
    torch.relu, functional.gelu, functional.silu, torch.sigmoid, torch.tanh, functional.hardswish, torch.rsqrt,
    lambda x: x * 2.0, lambda x: x + 1.0, lambda x: x.pow(2), torch.neg, torch.cos, functional.hardsigmoid,
    lambda x: functional.hardtanh(x, 0.0, 6.0), torch.exp,
)  # fmt: skip
_IN_PLACE: tuple[Callable[..., torch.Tensor], ...] = (
    lambda x: x.relu_(), lambda x: functional.silu(x, inplace=True), lambda x: x.add_(1.0),
    lambda x: functional.hardtanh(x, 0.0, 6.0, inplace=True), lambda x: x.mul_(1.01),
    lambda x: functional.hardswish(x, inplace=True),
)  # fmt: skip
_PAIRWISE: tuple[Callable[..., torch.Tensor], ...] = (torch.add, torch.mul, lambda a, b: a.add_(b))
_REDUCTIONS: tuple[Callable[..., torch.Tensor], ...] = (
    lambda x: x.mean((2, 3)), lambda x: x.mean((2, 3), keepdim=True),
    lambda x: functional.max_pool2d(x, 3, 2, 1), lambda x: functional.avg_pool2d(x, 2, 2),
)  # fmt: skip


class _Applied(nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return self.function(*tensors)


class LayerDraw:
    """The same layers in the same order every time."""

    def __init__(self) -> None:
        self._random = random.Random(0)

    def pick(self, *values: T) -> T:
        return self._random.choice(values)

    def chance(self, share: float) -> bool:
        return self._random.random() < share

    def size(self, low: float, high: float, step: int = 1) -> int:
        """A multiple of `step` between two powers of two."""
        return max(step, round(2 ** self._random.uniform(low, high) / step) * step)

    def image(self) -> tuple[int, ...]:
        side = self.pick(7, 8, 14, 14, 16, 28, 28, 32, 56, 56, 112)
        low, high = (3.5, 11.5) if side <= 16 else (3.5, 9) if side <= 32 else (3, 7.5)
        channels = self.size(low, high, 8)
        return self.pick(1, 1, 2, 4, 8, 16), channels, side, side

    def tokens(self) -> tuple[int, ...]:
        return self.pick(1, 2, 4, 8), self.size(4, 10), self.size(6, 12, 32)

    def convolution(self) -> Drawn:
        batch, channels, height, width = self.image()
        kernel, stride = self.pick(1, 1, 1, 3, 3, 3, 5, 7), self.pick(1, 1, 1, 2)
        how = self._random.random()
        if how < 0.12:
            channels, kernel, stride = 3, self.pick(3, 4, 7, 16), self.pick(2, 4, 16)
            height = width = self.pick(224, 224, 192, 256)
        wide, groups = self.size(4, 10, 8), 1
        if how > 0.75:
            groups, wide, kernel = channels, channels, self.pick(3, 3, 5, 7)
        elif how > 0.68 and channels % 32 == 0 and channels > 32:
            groups, wide, kernel = channels // 32, channels, 3
        padding = 0 if kernel == stride else kernel // 2
        layer = nn.Conv2d(channels, wide, kernel, stride, padding, groups=groups, bias=self.chance(0.4))
        return layer, (torch.randn(batch, channels, height, width),)

    def product(self) -> Drawn:
        batch, rows, depth, columns = self.size(0, 6), self.size(3, 9), self.size(4, 8, 8), self.size(3, 9)
        right = torch.randn(batch, depth, columns)
        if self.chance(0.5):
            right = torch.randn(batch, columns, depth).transpose(1, 2)
        return _Applied(torch.bmm), (torch.randn(batch, rows, depth), right)

    def attention(self) -> Drawn:
        batch, heads = self.pick(1, 2, 4, 8), self.pick(4, 8, 12, 16)
        length, width = self.size(4, 10), self.pick(32, 64, 64, 128)
        parts = tuple(torch.randn(batch, length, heads, width).transpose(1, 2) for _ in range(3))
        causal = self.chance(0.3)
        return _Applied(lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=causal)), parts

    def layer(self) -> Drawn:
        """Any of them: convolutions and linear layers most often."""
        what = self._random.random()
        if what < 0.34:
            return self.convolution()
        if what < 0.58:
            rows, width, wide = self.size(0, 11), self.size(5, 12.3, 32), self.size(5, 12.3, 32)
            return nn.Linear(width, wide, bias=self.chance(0.8)), (torch.randn(rows, width),)
        if what < 0.64:
            return self.product()
        if what < 0.69:
            return self.attention()
        if what < 0.75:
            shape = self.image()
            return nn.BatchNorm2d(shape[1]).eval(), (torch.randn(shape),)
        if what < 0.80:
            shape = self.tokens()
            return nn.LayerNorm(shape[-1]), (torch.randn(shape),)
        if what < 0.93:
            shape = self.image() if self.chance(0.5) else self.tokens()
            if what < 0.88:
                function = self.pick(*(_POINTWISE if self.chance(0.6) else _IN_PLACE))
                return _Applied(function), (torch.randn(shape).abs(),)
            other = torch.randn(shape) if self.chance(0.7) else torch.randn(*shape[:2], *(1 for _ in shape[2:]))
            return _Applied(self.pick(*_PAIRWISE)), (torch.randn(shape), other)
        if what < 0.945:
            batch, heads, length = self.pick(1, 2, 4), self.pick(4, 8, 12), self.size(4, 9)
            return nn.Softmax(-1), (torch.randn(batch, heads, length, length),)
        if what < 0.965:
            shape = self.tokens()
            turned = torch.randn(shape).transpose(1, 2)
            if not self.chance(0.5):
                turned = torch.randn(self.image()).permute(0, 2, 3, 1)
            return _Applied(lambda x: x.clone(memory_format=torch.contiguous_format)), (turned,)
        if what < 0.98:
            shape = self.image()
            return _Applied(self.pick(*_REDUCTIONS)), (torch.randn(shape),)
        if what < 0.99:
            shape = self.image()
            return _Applied(lambda a, b: torch.cat([a, b], 1)), (torch.randn(shape), torch.randn(shape))
        rows, width = self.size(9, 16), self.size(6, 11, 32)
        return nn.Embedding(rows, width), (torch.randint(0, rows, (self.pick(1, 4, 8), self.size(4, 10))),)
