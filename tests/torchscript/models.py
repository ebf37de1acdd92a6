"""Small models that TorchScript compiles, and the comparison of two analyses."""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, ResNet

import torchgauge as tg


def small_resnet() -> nn.Module:
    return ResNet(BasicBlock, [1, 1, 1, 1], num_classes=7)


class Hybrid(nn.Module):
    """A convolutional backbone and a transformer over its positions, as in DETR."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1))
        self.transformer = nn.Transformer(16, 2, 1, 2, 32, batch_first=True)
        self.query = nn.Parameter(torch.zeros(5, 16))
        self.classes = nn.Linear(16, 4)
        self.boxes = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        features = self.backbone(images).flatten(2).transpose(1, 2)
        hidden = self.transformer(features, self.query.unsqueeze(0).repeat(images.shape[0], 1, 1))
        return {"logits": self.classes(hidden), "boxes": self.boxes(hidden).sigmoid()}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.gelu(self.norm(self.linear(x))) + x


class Listed(nn.Module):
    """Blocks in two lists, whose elements have the same names."""

    def __init__(self) -> None:
        super().__init__()
        self.lower = nn.ModuleList([Block(), Block()])
        self.upper = nn.ModuleList([Block(), Block()])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.lower:
            x = block(x)
        for block in self.upper:
            x = block(x)
        return x


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.second = self.first[0]

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


@torch.jit.script
class Scale:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def apply(self, x: Tensor) -> Tensor:
        return x * self.factor


# TorchScript does not read the postponed annotations of a class.
Outcome = NamedTuple("Outcome", [("value", Tensor), ("steps", int)])  # noqa: UP014


def halve(x: Tensor, times: int) -> Tensor:
    for _ in range(times):
        x = x / 2
    return x


class Branching(nn.Module):
    """Branches, loops, lists, dicts, a script class, a function, a fork, its own state and an assertion."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.other = nn.Linear(4, 4)
        self.steps = 0

    def forward(self, x: Tensor, extra: int | None = None) -> tuple[Tensor, dict[str, Tensor], Outcome]:
        self.steps += 1
        x = Scale(3).apply(x)
        kept: list[Tensor] = []
        for index in range(4):
            if index == 3:
                break
            kept.append(self.layer(halve(x, index)))
        if x.size(0) > 2 and extra is None:
            x = self.other(x)
        elif extra is not None:
            x = x + extra
        future = torch.jit.fork(self.layer, x)
        assert x.dim() == 2, "two dimensions"
        stacked = torch.stack(kept)
        return torch.jit.wait(future), {"stacked": stacked}, Outcome(stacked, len(kept))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 5, num_layers=2, batch_first=True, dropout=0.5)
        self.gru = nn.GRU(5, 3, bidirectional=True, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden, _ = self.lstm(x)
        return self.gru(hidden)


def figures(analysis: tg.Analysis) -> dict[str, tuple[Any, ...]]:
    """What must agree between a model and its scripted form, by module."""
    return {
        row.path: (row.type, row.aliases, row.calls, row.params, row.macs, row.flops, row.ops, row.output_shapes)
        for row in analysis.modules
    }


def macs(analysis: tg.Analysis) -> dict[str, int]:
    return {row.path: row.macs for row in analysis.modules}


class Layout(Enum):
    FIRST = "first"
    LAST = "last"


class Arranged(nn.Module):
    """Like timm's patch embeddings: what forward does depends on a member of an enum."""

    def __init__(self, output: Layout) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 8)
        self.extra = nn.Linear(8, 8)
        self.output = output
        self.allowed = [Layout.FIRST, Layout.LAST]

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        if self.output == Layout.LAST and self.output.name == "LAST" and self.allowed[1] != Layout.FIRST:
            x = self.extra(x)
        return x
