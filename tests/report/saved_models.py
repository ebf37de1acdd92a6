"""The models of the saved runs."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(x + self.norm2(self.conv2(inner)))


class SmallCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.block = Residual(16)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(16, 10)
        self.unused = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        features = self.pool(self.block(torch.relu(self.stem(x))))
        return self.head(features.flatten(1))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.norm(x)
        x = x + self.attention(seen, seen, seen, need_weights=False)[0]
        return x + self.down(F.gelu(self.up(x)))


class SmallTransformer(nn.Module):
    """The head has the weight of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(100, 32)
        self.block = Block(32)
        self.head = nn.Linear(32, 100, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.block(self.tokens(ids)))


def token_ids() -> Tensor:
    return torch.zeros(1, 16, dtype=torch.int64)


def write_weights(path: Path) -> None:
    """A filter of zeros, a value that is not finite, a tensor twice."""
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(0)
    stem = torch.randn(8, 3, 3, 3, generator=generator)
    stem[0] = 0
    head = torch.randn(10, 8, generator=generator)
    head[0, 0] = float("nan")
    save_file(
        {"stem.weight": stem, "norm.running_mean": torch.ones(8), "head.weight": head, "copy.weight": stem.clone()},
        path,
    )
