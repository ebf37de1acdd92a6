"""Small models with one fault each, and without it; `zoo_structure` says which is which."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class ConvNet(nn.Module):
    def __init__(self, norm: type[nn.Module]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3)
        self.norm = norm(16)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x)))


class PreActivation(ConvNet):
    """The batch norm comes before the convolution: there is nothing to fold it into."""

    def __init__(self) -> None:
        super().__init__(nn.BatchNorm2d)
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(torch.relu(self.norm(x)))


class ReusedNorm(ConvNet):
    """One batch norm behind two convolutions cannot be folded into both."""

    def __init__(self) -> None:
        super().__init__(nn.BatchNorm2d)
        self.second = nn.Conv2d(16, 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.second(self.norm(self.conv(x))))


class ReadTwice(ConvNet):
    """The convolution's own output is wanted too."""

    def forward(self, x: Tensor) -> Tensor:
        made = self.conv(x)
        return torch.relu(self.norm(made)) + made


class Mlp(nn.Module):
    def __init__(self, features: int, act: nn.Module) -> None:
        super().__init__()
        self.up = nn.Linear(features, features)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.up(x))


class TanhGelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))


class ErfGelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


class Mixing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.exp(-(x * 3.0).abs()) * torch.sigmoid(x) + 0.1


class Single(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)


class RmsNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class LayerNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + 1e-5)


class Attention(nn.Module):
    def __init__(self, fused: bool, masked: bool = False) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)
        self.fused, self.masked = fused, masked

    def forward(self, x: Tensor) -> Tensor:
        shape = (x.shape[0], x.shape[1], 3, 4, 8)
        q, k, v = self.qkv(x).reshape(shape).permute(2, 0, 3, 1, 4).unbind(0)
        mask = torch.full((x.shape[1], x.shape[1]), -1e9).triu(1) if self.masked else None
        if self.fused:
            return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(8)
        scores = scores if mask is None else scores + mask
        return torch.softmax(scores, dim=-1) @ v


class Classifier(nn.Module):
    """A softmax between products that is not attention."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x, dim=1) * 2


class Wrapped(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Any:
        return self.block(x)


class Casts(nn.Module):
    def __init__(self, there: torch.dtype | None) -> None:
        super().__init__()
        self.there = there

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x.to(self.there).to(torch.float32) if self.there else x)


class WorkBetween(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x.double()).float()


class CastWeight(nn.Module):
    def __init__(self, kept: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(64, 64, dtype=kept))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.to(x.dtype)


class Promotes(nn.Module):
    scale: Tensor

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(64, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class Copies(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "clone":
            return torch.relu(x.clone())
        if self.kind == "strided":
            return torch.sigmoid(x.transpose(1, 2).contiguous())
        if self.kind == "twice":
            return torch.relu(x.transpose(1, 2).contiguous().transpose(0, 1).contiguous().view(-1))
        return torch.relu(x)


class Guarded(nn.Module):
    """What is written to needs the copy."""

    def forward(self, x: Tensor) -> Tensor:
        return x.clone().mul_(2)


class Flattened(nn.Module):
    """The view needs the tensor contiguous."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x.transpose(1, 2).contiguous().view(x.shape[0], -1))


class Positions(nn.Module):
    table: Tensor

    def __init__(self, kept: bool) -> None:
        super().__init__()
        self.kept = kept
        self.register_buffer("table", self.make(64, 64))

    @staticmethod
    def make(rows: int, columns: int) -> Tensor:
        return torch.sin(torch.arange(rows)[:, None] * torch.exp(-torch.arange(columns) / columns))

    def forward(self, x: Tensor) -> Tensor:
        return x + (self.table if self.kept else self.make(64, 64))


class Accumulates(nn.Module):
    """Zeros to write to are not a constant."""

    def forward(self, x: Tensor) -> Tensor:
        out = torch.zeros(x.shape[0], 64, 64)
        out[:, :32] = x[:, :32]
        return out


class StandardisedWeight(nn.Module):
    def __init__(self, once: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64, 64))
        self.once = once

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.weight if self.once else torch.tanh(self.weight) * 2)


class Head(nn.Module):
    def __init__(self, idle: str | None) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.aux = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)) if idle == "module" else None
        self.scale = nn.Parameter(torch.ones(8)) if idle == "parameter" else None

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class Experts(nn.Module):
    """Data choose one of several: the others are not idle for good."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.experts[1](x)


class RestoredWeight(nn.Module):
    """Codes of 8 bits that are restored at every call, with scales for groups of inputs; or multiplied as they are."""

    def __init__(self, group: int = 64, fused: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64, 64, dtype=torch.int8), requires_grad=False)
        self.weight_scale = nn.Parameter(torch.ones(64, 64 // group), requires_grad=False)
        self.group, self.fused = group, fused

    def forward(self, x: Tensor) -> Tensor:
        if self.fused:
            return torch._weight_int8pack_mm(x.flatten(0, -2), self.weight, self.weight_scale[:, 0])
        return x @ (self.weight * self.weight_scale.repeat_interleave(self.group, 1)).T
