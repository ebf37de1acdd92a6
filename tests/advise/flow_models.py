"""Small models that only the exact flow of the data tells apart; `zoo_flow` says which has a fault."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.advise.faulty_models import ConvNet


class TwoConvolutions(ConvNet):
    """Two convolutions of equal shapes: the norm reads the first, the sum the second."""

    def __init__(self) -> None:
        super().__init__(nn.BatchNorm2d)
        self.other = nn.Conv2d(3, 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.conv(x), self.other(x)
        return self.norm(first) + second


class GivesBoth(nn.Module):
    """The convolution's own output is a result of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16)

    def forward(self, x: Tensor) -> list[Tensor]:
        made = self.conv(x)
        return [torch.relu(self.norm(made)), made]


class LinearNorm(nn.Module):
    """`turned`: the norm's channels are not the features of the linear layer."""

    def __init__(self, norm: nn.Module, turned: bool = False) -> None:
        super().__init__()
        self.up, self.norm, self.turned = nn.Linear(64, 64), norm, turned

    def forward(self, x: Tensor) -> Tensor:
        made = self.up(x)
        return self.norm(made if self.turned else made.transpose(1, 2))


class NormLinear(nn.Module):
    """`between`: something stands between the norm and the linear layer."""

    def __init__(self, between: nn.Module) -> None:
        super().__init__()
        self.norm, self.between, self.down = nn.BatchNorm1d(64), between, nn.Linear(64, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.between(self.norm(x)))


class NormConvolution(nn.Module):
    def __init__(self, padding: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3, padding=padding)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.norm(x))


class EpsAlone(nn.Module):
    """Squares, a mean and a root that have nothing to do with each other."""

    def forward(self, x: Tensor) -> Tensor:
        power = x.pow(2).mean(-1, keepdim=True)
        spread = torch.sqrt(torch.sigmoid(x) + 1e-6)
        return x * spread + power


class WeightsWanted(nn.Module):
    """The attention weights are a result: they must be computed."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights = torch.softmax(x @ x.transpose(-2, -1), dim=-1)
        return weights @ x, weights


class MeanOfWeights(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights = torch.softmax(x @ x.transpose(-2, -1), dim=-1)
        return weights @ x, weights.mean(1)


class Scores(nn.Module):
    """The mean of the weights is thrown away by whoever calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = MeanOfWeights()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[0]


class OneBranch(nn.Module):
    """Pointwise ops around a product: what reads it cannot be in one kernel with what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64, 64))

    def forward(self, x: Tensor) -> Tensor:
        first = torch.sigmoid(x) * 2
        return (first @ self.weight) * first + 1


class CastForTwo(nn.Module):
    """The type between is read by another op too."""

    def forward(self, x: Tensor) -> Tensor:
        narrow = x.half()
        return torch.relu(narrow.float()) + narrow.abs().float()


class Takes(nn.Module):
    """The sole reader of the copy gives it back, so the copy is the caller's."""

    def forward(self, x: Tensor) -> Tensor:
        return x.clone()


class Mixes(nn.Module):
    """A sum of a parameter and an input of the same size is not work on weights alone."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 64, 64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x + self.weight)


class TransposedKeys(nn.Module):
    """Products take transposed matrices as they are; of heads that lie amid the features they need a copy."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads, self.query, self.key = heads, nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        if self.heads == 1:
            return self.query(x) @ self.key(x).transpose(1, 2).contiguous()
        queries, keys = (layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key))
        return queries @ keys.transpose(-1, -2).contiguous()
