"""Odd small models, each with the habit of some real one that a counter has stumbled over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Tied(nn.Module):
    """A language model whose output layer is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embed(ids))


class Reused(nn.Module):
    """One layer called three times, and known under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = self.first

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(self.first(x)))


class Unused(nn.Module):
    """A layer that never runs and a parameter outside any call."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(4, 4)
        self.never = nn.Linear(4, 100)
        self.loose = nn.Parameter(torch.zeros(7))

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


class Functional(nn.Module):
    """No submodules: parameters in a list, work in functions."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(8, 8)) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = torch.relu(x @ weight)
        return torch.einsum("bi,bj->bij", x, x)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(4, 8)
        self.right = nn.Linear(6, 8)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.left(a) + self.right(b)


class DictInOut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, batch: dict[str, Tensor], *, scale: float = 1.0, mask: Tensor | None = None) -> dict[str, Tensor]:
        y = self.layer(batch["x"]) * scale
        return {"y": y if mask is None else y * mask, "x": batch["x"]}


@dataclass
class Batch:
    x: Tensor
    sizes: list[int]
    mask: Tensor | None = None


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


class Structured(nn.Module):
    """A dataclass in, a named tuple out."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, batch: Batch) -> Pair:
        return Pair(self.layer(batch.x), batch.x.sum(0))


class BranchesOnFloat(nn.Module):
    """Which layer runs depends on the values: only a real run can know."""

    def __init__(self) -> None:
        super().__init__()
        self.positive = nn.Linear(8, 16)
        self.negative = nn.Linear(8, 32)

    def forward(self, x: Tensor) -> Tensor:
        return self.positive(x) if x.sum() > 0 else self.negative(x)


class BranchesOnMask(nn.Module):
    """Looks at integers and booleans, as transformers does at masks and positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.dense = nn.Linear(8, 8)
        self.padded = nn.Linear(8, 64)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        positions = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)
        if not bool((ids != 0).all()):
            return self.padded(x[ids != 0])
        if int(positions.max()) + 1 != ids.shape[1]:
            raise ValueError("positions are wrong")
        return self.dense(x)


class Raises(nn.Module):
    """Fails half-way, after it changed everything it could."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.layer = nn.Linear(4, 4)
        self.history: list[Any] = []

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.layer(self.norm(x))
        self.history.append(self.last)
        self.layer.eval()
        raise ValueError("half-way")


class Remembers(nn.Module):
    """Keeps tensors of its forward in attributes, lists, dicts and buffers."""

    steps: Tensor
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.cache: dict[str, Tensor] = {}
        self.history: list[Tensor] = []
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        self.cache["x"] = x
        self.history.append(x)
        self.last = self.layer(x)
        return self.last


class Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., nn.RNNBase] = nn.LSTM, **options: Any) -> None:
        super().__init__()
        self.rnn = kind(12, 20, **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x)[0]


class HandAttention(nn.Module):
    """Attention written out with matmul and softmax."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1)) * (q.shape[-1] ** -0.5)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width))


class FusedAttention(nn.Module):
    """The same through `scaled_dot_product_attention`, with grouped keys and values on request."""

    def __init__(self, width: int = 32, heads: int = 4, kv_heads: int = 4, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.causal = heads, kv_heads, causal
        size = width // heads
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * kv_heads * size)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q = self.q(x).view(batch, length, self.heads, -1).transpose(1, 2)
        k, v = self.kv(x).view(batch, length, 2 * self.kv_heads, -1).transpose(1, 2).chunk(2, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=self.kv_heads != self.heads)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Router(nn.Module):
    """A mixture of experts with a loop over the experts that were hit."""

    def __init__(self, width: int = 16, experts: int = 4, chosen: int = 2) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))
        self.chosen = chosen

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        weights, picked = torch.topk(self.gate(tokens).softmax(-1), self.chosen, dim=-1)
        out = torch.zeros_like(tokens)
        hits = F.one_hot(picked, len(self.experts)).permute(2, 1, 0)
        for index in (hits.sum((-1, -2)) > 0).nonzero():
            slot, rows = torch.where(hits[index[0]])
            out.index_add_(0, rows, self.experts[index[0]](tokens[rows]) * weights[rows, slot, None])
        return out.reshape(x.shape)


class Scripted(nn.Module):
    """An eager model with a scripted part inside."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 8)
        self.part = torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.ReLU()))

    def forward(self, x: Tensor) -> Tensor:
        return self.part(self.stem(x))


class InPlaceShapes(nn.Module):
    """Changes the shape of its own tensors."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        y.unsqueeze_(0).transpose_(1, 2)
        y.t_() if y.dim() == 2 else y.squeeze_(0)
        return y + 1


class Residual(nn.Module):
    """A ladder of equal blocks."""

    def __init__(self, width: int = 8, blocks: int = 6) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x
