"""Models and rows that the tests of torchstat's interface share."""

from __future__ import annotations

from collections import OrderedDict

import torch.nn.functional as F
from torch import Tensor, nn

from torchgauge.compat.torchstat import ModelStat, StatNode


class Net(nn.Module):
    """The net of torchstat's README."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 10, kernel_size=5)
        self.conv2 = nn.Conv2d(10, 20, kernel_size=5)
        self.conv2_drop = nn.Dropout2d()
        self.fc1 = nn.Linear(56180, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2_drop(self.conv2(x)), 2))
        return F.log_softmax(self.fc2(F.relu(self.fc1(x.flatten(1)))), dim=1)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.act = nn.ReLU()
        self.second = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.act(self.first(self.act(x))))


def nested() -> nn.Module:
    return nn.Sequential(OrderedDict(stem=nn.Linear(8, 4), body=nn.Sequential(Block(), Block()), head=nn.Linear(4, 2)))


def rows(model: nn.Module, size: tuple[int, ...], granularity: int = 1) -> list[StatNode]:
    return ModelStat(model, size, granularity)._analyze_model()
