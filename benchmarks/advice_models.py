"""The models of `advice.py`: for the CPU and a GPU, written or chosen by somebody who did not know the rules.

`made` builds a model with the change for a rule; where the advice has no code, that change is what is measured.
"""

# ruff: noqa: N806 (names of sizes and matrices as research code has them)

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Inputs = tuple[Any, ...]
_SMALL = {"vocab_size": 2000, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}


@dataclass(frozen=True)
class Subject:
    """`inputs` gets the scale: 1 on a CPU, `cuda_scale` on a GPU."""

    name: str
    made: Callable[[str], nn.Module]
    inputs: Callable[[int], Inputs]
    cuda_scale: int = 8


def x(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def ids(below: int, *shape: int) -> Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(0))


class HandAttention(nn.Module):
    """Multi-head attention as tutorials write it."""

    def __init__(self, width: int, heads: int, fix: str = "") -> None:
        super().__init__()
        self.heads, self.fix = heads, fix
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, h: Tensor, mask: Tensor | None = None) -> Tensor:
        B, T, C = h.shape
        q, k, v = self.qkv(h).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        if self.fix == "attention-by-hand":
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            scores = q @ k.transpose(-2, -1) / math.sqrt(C // self.heads)
            if mask is not None:
                scores = scores.masked_fill(~mask, float("-inf"))
            mixed = scores.softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(B, T, C))


class MusicTagger(nn.Module):
    """Spectrograms: convolutions with batch norms, then attention over the frames."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inner, outer in ((1, 24), (24, 48), (48, 64)):
            layers += [nn.Conv2d(inner, outer, 3, padding=1), nn.BatchNorm2d(outer), nn.ReLU(), nn.MaxPool2d(2)]
        self.front = nn.Sequential(*layers)
        self.project = nn.Linear(64 * 12, 192)
        self.layers = nn.ModuleList(HandAttention(192, 6, fix) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(192) for _ in range(3))
        self.head = nn.Linear(192, 50)

    def forward(self, mel: Tensor) -> Tensor:
        h = self.front(mel)
        h = self.project(h.flatten(1, 2).transpose(1, 2))
        for norm, layer in zip(self.norms, self.layers, strict=True):
            h = h + layer(norm(h))
        return self.head(h.mean(1)).sigmoid()


class LongDocuments(nn.Module):
    """Attention over 512 tokens, where the matrix of scores no longer fits into a cache."""

    def __init__(self, fix: str = "", width: int = 256) -> None:
        super().__init__()
        self.words = nn.Embedding(5000, width)
        self.layers = nn.ModuleList(HandAttention(width, 8, fix) for _ in range(4))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(4)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.words(tokens)
        for layer, mlp in zip(self.layers, self.mlps, strict=True):
            h = h + layer(h)
            h = h + mlp(h)
        return h.mean(1)


class SinusoidDecoder(nn.Module):
    """A decoder whose positions and causal mask are made anew in every call."""

    def __init__(self, fix: str = "", width: int = 192, length: int = 160) -> None:
        super().__init__()
        self.width, self.fix = width, fix
        self.words = nn.Embedding(3000, width)
        self.layers = nn.ModuleList(HandAttention(width, 4, fix) for _ in range(2))
        self.head = nn.Linear(width, 3000, bias=False)
        table, mask = self.constants(length, torch.device("cpu"))
        self.register_buffer("table", table, persistent=False)
        self.register_buffer("mask", mask, persistent=False)

    def constants(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        at = torch.arange(length, device=device, dtype=torch.float32)[:, None]
        rates = torch.exp(torch.arange(0, self.width, 2, device=device).float() * (-math.log(1e4) / self.width))
        table = torch.zeros(length, self.width, device=device)
        table[:, 0::2], table[:, 1::2] = torch.sin(at * rates), torch.cos(at * rates)
        return table, torch.ones(length, length, dtype=torch.bool, device=device).tril()

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.words(tokens) * math.sqrt(self.width)
        if self.fix == "recomputed-constant":
            table, mask = self.table, self.mask
        else:
            table, mask = self.constants(tokens.shape[1], tokens.device)
        h = h + table
        for layer in self.layers:
            h = h + layer(h, mask)
        return self.head(h)


class GraphAttention(nn.Module):
    """GAT with heads in a loop, each with its own small linear layers."""

    def __init__(self, fix: str = "", heads: int = 8, width: int = 24, inner: int = 96) -> None:
        super().__init__()
        self.fix, self.heads = fix, heads
        self.w = nn.ModuleList(nn.Linear(inner, width, bias=False) for _ in range(heads))
        self.left = nn.ModuleList(nn.Linear(width, 1, bias=False) for _ in range(heads))
        self.right = nn.ModuleList(nn.Linear(width, 1, bias=False) for _ in range(heads))
        self.out = nn.Linear(heads * width, 7)

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Tensor:
        if self.fix == "parallel-linears":
            joined = F.linear(nodes, torch.cat([layer.weight for layer in self.w])).chunk(self.heads, -1)
        else:
            joined = tuple(layer(nodes) for layer in self.w)
        found = []
        is_edge = adjacency > 0 if self.fix == "repeated-work" else None
        for h, left, right in zip(joined, self.left, self.right, strict=True):
            e = F.leaky_relu(left(h) + right(h).transpose(-1, -2), 0.2)
            if self.fix == "repeated-work":
                weights = torch.where(is_edge, e, -9e15).softmax(-1)
            else:
                weights = torch.where(adjacency > 0, e, torch.full_like(e, -9e15)).softmax(-1)
            found.append(F.elu(weights @ h))
        return self.out(torch.cat(found, -1))


class GruByHand(nn.Module):
    """A GRU cell over the steps of sensor readings."""

    def __init__(self, fix: str = "", inner: int = 32, units: int = 96) -> None:
        super().__init__()
        self.fix = fix
        self.cell = nn.GRUCell(inner, units)
        self.whole = nn.GRU(inner, units, batch_first=True)
        with torch.no_grad():
            for own, cell in (("weight_ih_l0", "weight_ih"), ("weight_hh_l0", "weight_hh"), ("bias_ih_l0", "bias_ih"),
                              ("bias_hh_l0", "bias_hh")):  # fmt: skip
                getattr(self.whole, own).copy_(getattr(self.cell, cell))
        if fix != "loop-over-steps":
            del self.whole
        self.head = nn.Linear(units, 4)

    def forward(self, readings: Tensor) -> Tensor:
        if self.fix == "loop-over-steps":
            return self.head(self.whole(readings)[0])
        h = readings.new_zeros(readings.shape[0], self.cell.hidden_size)
        outputs = []
        for t in range(readings.shape[1]):
            h = self.cell(readings[:, t], h)
            outputs.append(h)
        return self.head(torch.stack(outputs, 1))


class PatchTower(nn.Module):
    """Slides of a biopsy: each patch goes through a small network, one after the other."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.net = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
            nn.Flatten(), nn.Linear(32, 64),
        )  # fmt: skip
        self.head = nn.Linear(64, 2)

    def forward(self, slides: Tensor) -> Tensor:
        B, N = slides.shape[:2]
        if self.fix == "loop-over-samples":
            features = self.net(slides.flatten(0, 1)).unflatten(0, (B, N))
        else:
            features = torch.stack([self.net(slides[:, n]) for n in range(N)], 1)
        return self.head(features.amax(1))


class SpectralNet(nn.Module):
    """Convolutions whose weights are normalised by hand in every call."""

    def __init__(self, fix: str = "", width: int = 64) -> None:
        super().__init__()
        self.fix = fix
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(width, width, 3, 3) * 0.1) for _ in range(4))
        self.gains = nn.ParameterList(nn.Parameter(torch.ones(width)) for _ in range(4))
        if fix == "recomputed-weight":
            self.kept = nn.ParameterList(
                self.normalised(weight, gain).detach() for weight, gain in zip(self.weights, self.gains, strict=True)
            )

    @staticmethod
    def normalised(weight: Tensor, gain: Tensor) -> Tensor:
        mean = weight.mean((1, 2, 3), keepdim=True)
        std = weight.std((1, 2, 3), keepdim=True)
        return (weight - mean) / (std + 1e-5) * gain[:, None, None, None]

    def forward(self, picture: Tensor) -> Tensor:
        h = self.first(picture)
        for number, (weight, gain) in enumerate(zip(self.weights, self.gains, strict=True)):
            used = self.kept[number] if self.fix == "recomputed-weight" else self.normalised(weight, gain)
            h = F.relu(F.conv2d(h, used, padding=1))
        return h.mean((2, 3))


class LowRankHyper(nn.Module):
    """Linear layers whose matrices are products of two thin ones."""

    def __init__(self, fix: str = "", width: int = 512, rank: int = 96) -> None:
        super().__init__()
        self.fix = fix
        self.left = nn.ParameterList(nn.Parameter(torch.randn(width, rank) * 0.05) for _ in range(3))
        self.right = nn.ParameterList(nn.Parameter(torch.randn(rank, width) * 0.05) for _ in range(3))
        self.base = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        if fix == "recomputed-weight":
            self.kept = nn.ParameterList(
                (layer.weight + left @ right).detach()
                for layer, left, right in zip(self.base, self.left, self.right, strict=True)
            )

    def forward(self, h: Tensor) -> Tensor:
        for number, layer in enumerate(self.base):
            if self.fix == "recomputed-weight":
                weight = self.kept[number]
            else:
                weight = layer.weight + self.left[number] @ self.right[number]
            h = torch.tanh(F.linear(h, weight, layer.bias))
        return h


class TableEmbedder(nn.Module):
    """Numbers and categories of a table, joined by attention over the columns."""

    def __init__(self, fix: str = "", columns: int = 20, width: int = 64) -> None:
        super().__init__()
        self.fix = fix
        self.weight = nn.Parameter(torch.randn(columns, width))
        self.bias = nn.Parameter(torch.randn(columns, width))
        self.layers = nn.ModuleList(HandAttention(width, 4, fix) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.ffns = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)) for _ in range(2)
        )
        self.head = nn.Linear(width, 1)

    def forward(self, rows: Tensor) -> Tensor:
        h = rows[..., None] * self.weight + self.bias
        for norm, layer, ffn in zip(self.norms, self.layers, self.ffns, strict=True):
            h = h + layer(norm(h))
            h = h + ffn(h)
        return self.head(h.mean(1))


class RmsBlocks(nn.Module):
    """RMS norms and GELU written out."""

    def __init__(self, fix: str = "", width: int = 320, depth: int = 4) -> None:
        super().__init__()
        self.fix = fix
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(width)) for _ in range(depth))
        self.up = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(depth))
        self.down = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth))

    def norm(self, h: Tensor, scale: Tensor) -> Tensor:
        if self.fix == "norm-by-hand":
            return F.rms_norm(h, h.shape[-1:], scale, 1e-6)
        return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * scale

    def gelu(self, h: Tensor) -> Tensor:
        if self.fix == "gelu-by-hand":
            return F.gelu(h, approximate="tanh")
        return 0.5 * h * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (h + 0.044715 * torch.pow(h, 3.0))))

    def forward(self, h: Tensor) -> Tensor:
        for scale, up, down in zip(self.scales, self.up, self.down, strict=True):
            h = h + down(self.gelu(up(self.norm(h, scale))))
        return h


class SwishNet(nn.Module):
    """Separable convolutions with batch norms and swish as x * sigmoid(x)."""

    def __init__(self, fix: str = "", width: int = 48) -> None:
        super().__init__()
        self.fix = fix
        self.stem, self.stem_norm = nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width)
        self.deep = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False) for _ in range(3))
        self.point = nn.ModuleList(nn.Conv2d(width, width, 1, bias=False) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(6))

    def swish(self, h: Tensor) -> Tensor:
        return F.silu(h) if self.fix == "silu-by-hand" else h * torch.sigmoid(h)

    def forward(self, picture: Tensor) -> Tensor:
        h = self.swish(self.stem_norm(self.stem(picture)))
        for number in range(3):
            y = self.swish(self.norms[2 * number](self.deep[number](h)))
            h = h + self.norms[2 * number + 1](self.point[number](y))
        return h.mean((2, 3))


class NeuralProcess(nn.Module):
    """One vector for a set, repeated for each target point and joined to it before a linear layer."""

    def __init__(self, fix: str = "", width: int = 128) -> None:
        super().__init__()
        self.fix, self.width = fix, width
        self.encode = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width))
        self.first = nn.Linear(width + 2, width)
        self.rest = nn.Sequential(nn.ReLU(), nn.Linear(width, 2))

    def forward(self, context: Tensor, targets: Tensor) -> Tensor:
        r = self.encode(context).mean(1)
        if self.fix in ("repeated-input", "repeated-part"):
            weight, bias = self.first.weight, self.first.bias
            h = F.linear(r, weight[:, : self.width], bias)[:, None] + F.linear(targets, weight[:, self.width :])
        else:
            h = self.first(torch.cat([r.unsqueeze(1).repeat(1, targets.shape[1], 1), targets], -1))
        return self.rest(h)


class PairScorer(nn.Module):
    """All pairs of two sets: joined features, then a small network."""

    def __init__(self, fix: str = "", width: int = 64) -> None:
        super().__init__()
        self.fix, self.width = fix, width
        self.first, self.second = nn.Linear(2 * width, 96), nn.Linear(96, 1)

    def forward(self, queries: Tensor, items: Tensor) -> Tensor:
        Q, N = queries.shape[0], items.shape[0]
        if self.fix:
            weight, bias = self.first.weight, self.first.bias
            h = F.linear(queries, weight[:, : self.width])[:, None] + F.linear(items, weight[:, self.width :], bias)
        else:
            a = queries[:, None].expand(Q, N, self.width)
            b = items[None].expand(Q, N, self.width)
            h = self.first(torch.cat([a, b], -1))
        return self.second(F.relu(h)).squeeze(-1)


class OneHotTags(nn.Module):
    """Tags of words as one-hot rows before a linear layer."""

    def __init__(self, fix: str = "", tags: int = 400, width: int = 128) -> None:
        super().__init__()
        self.fix, self.tags = fix, tags
        self.embed = nn.Linear(tags, width, bias=False)
        self.rnn = nn.GRU(width, 64, batch_first=True)
        self.head = nn.Linear(64, 20)

    def forward(self, tags: Tensor) -> Tensor:
        if self.fix == "one-hot-product":
            h = F.embedding(tags, self.embed.weight.T.contiguous())
        else:
            h = self.embed(F.one_hot(tags, self.tags).float())
        return self.head(self.rnn(h)[0])


class DoubleTables(nn.Module):
    """Fourier features of coordinates from a table of numpy's type."""

    def __init__(self, fix: str = "", bands: int = 64) -> None:
        super().__init__()
        import numpy as np

        rates = torch.from_numpy(2.0 ** np.linspace(0, 6, bands))
        self.register_buffer("rates", rates.float() if fix == "double-precision" else rates)
        self.body = nn.Sequential(nn.Linear(6 * bands, 128), nn.ReLU(), nn.Linear(128, 3))

    def forward(self, points: Tensor) -> Tensor:
        angles = points[..., None] * self.rates
        features = torch.cat([angles.sin(), angles.cos()], -1).flatten(-2)
        return self.body(features.float())


class RepeatedKeys(nn.Module):
    """Grouped queries: keys and values are copied for each head."""

    def __init__(self, fix: str = "", width: int = 512, heads: int = 16, groups: int = 4) -> None:
        super().__init__()
        self.fix, self.heads, self.groups, self.size = fix, heads, groups, width // heads
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * groups * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        B, T, C = h.shape
        q = self.q(h).view(B, T, self.heads, self.size).transpose(1, 2)
        k, v = self.kv(h).view(B, T, 2, self.groups, self.size).permute(2, 0, 3, 1, 4)
        if self.fix == "repeated-keys":
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            k, v = (value.repeat_interleave(self.heads // self.groups, dim=1) for value in (k, v))
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(B, T, C))


class Segmenter(nn.Module):
    """A decoder that enlarges before its 1×1 convolution; layers with batch norms."""

    def __init__(self, fix: str = "", classes: int = 12) -> None:
        super().__init__()
        self.fix = fix
        layers: list[nn.Module] = []
        for inner, outer in ((3, 32), (32, 64), (64, 96)):
            layers += [nn.Conv2d(inner, outer, 3, 2, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(inplace=True)]
        self.encoder = nn.Sequential(*layers)
        self.classify = nn.Conv2d(96, classes, 1)

    def forward(self, picture: Tensor) -> Tensor:
        h = self.encoder(picture)
        if self.fix == "resample-before-pointwise":
            return F.interpolate(self.classify(h), scale_factor=8.0, mode="bilinear", align_corners=False)
        return self.classify(F.interpolate(h, scale_factor=8.0, mode="bilinear", align_corners=False))


class EnergyWindows(nn.Module):
    """The same statistics of a signal computed by two branches."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.conv = nn.Conv1d(8, 32, 5, padding=2)
        self.first, self.second = nn.Linear(32, 16), nn.Linear(32, 16)

    def scaled(self, signal: Tensor) -> Tensor:
        mean, std = signal.mean(-1, keepdim=True), signal.std(-1, keepdim=True)
        return self.conv((signal - mean) / (std + 1e-5))

    def forward(self, signal: Tensor) -> Tensor:
        one = self.scaled(signal)
        other = one if self.fix == "repeated-work" else self.scaled(signal)
        return torch.cat([self.first(one.amax(-1)), self.second(other.mean(-1))], -1)


class BeamCache(nn.Module):
    """Writes 24 tokens; the keys and values grow by cat."""

    def __init__(self, fix: str = "", width: int = 256, heads: int = 4, steps: int = 24) -> None:
        super().__init__()
        self.fix, self.heads, self.steps, self.size = fix, heads, steps, width // heads
        self.words = nn.Embedding(1000, width)
        self.qkv, self.out, self.head = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Linear(width, 1000)

    def forward(self, first: Tensor) -> Tensor:
        token, B = first, first.shape[0]
        shape = (B, self.heads, self.steps, self.size)
        keys = values = None
        room = [first.new_empty(shape, dtype=torch.float32) for _ in range(2)] if self.fix == "grown-by-cat" else []
        for step in range(self.steps):
            h = self.words(token)
            q, k, v = self.qkv(h).view(B, 1, 3, self.heads, self.size).permute(2, 0, 3, 1, 4)
            if room:
                room[0][:, :, step : step + 1], room[1][:, :, step : step + 1] = k, v
                keys, values = room[0][:, :, : step + 1], room[1][:, :, : step + 1]
            else:
                keys = k if keys is None else torch.cat([keys, k], 2)
                values = v if values is None else torch.cat([values, v], 2)
            mixed = F.scaled_dot_product_attention(q, keys, values)
            logits = self.head(h + self.out(mixed.transpose(1, 2).reshape(B, 1, -1)))
            token = logits.argmax(-1)
        return logits


class FactorizedField(nn.Module):
    """Two linear layers in a row without an activation between them."""

    def __init__(self, fix: str = "", width: int = 256) -> None:
        super().__init__()
        self.fix = fix
        self.enter = nn.Linear(64, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, 10)
        if fix:
            weight = self.narrow.weight @ self.widen.weight
            bias = self.narrow.weight @ self.widen.bias + self.narrow.bias
            self.kept = nn.ParameterList([weight.detach(), bias.detach()])

    def forward(self, h: Tensor) -> Tensor:
        h = torch.relu(self.enter(h))
        h = F.linear(h, self.kept[0], self.kept[1]) if self.fix else self.narrow(self.widen(h))
        return self.head(torch.relu(h))


class GlobalNorms(nn.Module):
    """A separator of speakers with norms over channels and time, written out."""

    def __init__(self, fix: str = "", width: int = 96) -> None:
        super().__init__()
        self.fix = fix
        self.enter = nn.Conv1d(1, width, 16, 8)
        self.blocks = nn.ModuleList(nn.Conv1d(width, width, 3, padding=1) for _ in range(4))
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(1, width, 1)) for _ in range(4))
        self.shifts = nn.ParameterList(nn.Parameter(torch.zeros(1, width, 1)) for _ in range(4))

    def norm(self, h: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        if self.fix == "norm-by-hand":
            return F.group_norm(h, 1, scale.flatten(), shift.flatten(), 1e-8)
        mean = h.mean((1, 2), keepdim=True)
        variance = torch.pow(h - mean, 2).mean((1, 2), keepdim=True)
        return scale * (h - mean) / torch.sqrt(variance + 1e-8) + shift

    def forward(self, wave: Tensor) -> Tensor:
        h = self.enter(wave)
        for block, scale, shift in zip(self.blocks, self.scales, self.shifts, strict=True):
            h = h + self.norm(F.relu(block(h)), scale, shift)
        return h.mean(-1)


class ClickTower(nn.Module):
    """Dense layers with batch norms after embeddings."""

    def __init__(self, fix: str = "", fields: int = 16, width: int = 16) -> None:
        super().__init__()
        self.table = nn.Embedding(20000, width)
        layers: list[nn.Module] = []
        for inner, outer in ((fields * width, 256), (256, 128), (128, 64)):
            layers += [nn.Linear(inner, outer), nn.BatchNorm1d(outer), nn.ReLU()]
        self.tower = nn.Sequential(*layers, nn.Linear(64, 1))

    def forward(self, fields: Tensor) -> Tensor:
        return self.tower(self.table(fields).flatten(1)).sigmoid()


def timm_model(name: str) -> Callable[[str], nn.Module]:
    def made(fix: str) -> nn.Module:
        from torchgauge.source.packages import import_optional

        return import_optional("timm", "the benchmark").create_model(name)

    return made


def vision_model(name: str) -> Callable[[str], nn.Module]:
    def made(fix: str) -> nn.Module:
        from torchgauge.source.packages import import_optional

        return getattr(import_optional("torchvision.models", "the benchmark"), name)(weights=None)

    return made


def text_model(name: str, config: str, **settings: Any) -> Callable[[str], nn.Module]:
    def made(fix: str) -> nn.Module:
        from torchgauge.source.packages import import_optional

        transformers = import_optional("transformers", "the benchmark")
        return getattr(transformers, name)(getattr(transformers, config)(**settings))

    return made


def images(side: int) -> Callable[[int], Inputs]:
    return lambda scale: (x(scale, 3, side, side),)


def of(made: Callable[[str], nn.Module], *fixes: str) -> Callable[[str], nn.Module]:
    """With the changes that are written for it; another one is an error, not the unchanged model."""

    def build(fix: str) -> nn.Module:
        if fix and fix not in fixes:
            raise NotImplementedError(f"no change is written for {fix}")
        return made(fix)

    return build


def small_text(name: str, config: str, **settings: int) -> Callable[[str], nn.Module]:
    widths = {"hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 768}
    return text_model(name, config, **(widths | settings | _SMALL))


def words(scale: int) -> Inputs:
    return (ids(2000, scale, 128),)


def graph(scale: int) -> Inputs:
    return x(2 * scale, 150, 96), (x(2 * scale, 150, 150) > 1.0).float() + torch.eye(150)


SUBJECTS = [
    Subject("music tagger", of(MusicTagger, "attention-by-hand"), lambda scale: (x(2 * scale, 1, 96, 256),), 16),
    Subject("long documents", of(LongDocuments, "attention-by-hand"), lambda scale: (ids(5000, scale, 512),), 8),
    Subject(
        "sinusoid decoder",
        of(SinusoidDecoder, "recomputed-constant", "attention-by-hand"),
        lambda scale: (ids(3000, 2 * scale, 160),),
        16,
    ),
    Subject("graph attention", of(GraphAttention, "parallel-linears", "repeated-work"), graph, 16),
    Subject("sensor GRU", of(GruByHand, "loop-over-steps"), lambda scale: (x(8 * scale, 60, 32),), 16),
    Subject("biopsy patches", of(PatchTower, "loop-over-samples"), lambda scale: (x(2 * scale, 16, 3, 32, 32),), 8),
    Subject("standardized weights", of(SpectralNet, "recomputed-weight"), lambda scale: (x(scale, 3, 32, 32),), 16),
    Subject("adapted layers", of(LowRankHyper, "recomputed-weight"), lambda scale: (x(32 * scale, 512),), 16),
    Subject("table columns", of(TableEmbedder, "attention-by-hand"), lambda scale: (x(64 * scale, 20),), 32),
    Subject("RMS blocks", of(RmsBlocks, "norm-by-hand", "gelu-by-hand"), lambda scale: (x(2 * scale, 128, 320),), 32),
    Subject("swish net", of(SwishNet, "silu-by-hand"), lambda scale: (x(scale, 3, 96, 96),), 32),
    Subject(
        "neural process",
        of(NeuralProcess, "repeated-input", "repeated-part"),
        lambda scale: (x(4 * scale, 50, 3), x(4 * scale, 300, 2)),
        32,
    ),
    Subject(
        "pair scorer",
        of(PairScorer, "repeated-input", "linear-after-gather", "repeated-part"),
        lambda scale: (x(20 * scale, 64), x(200, 64)),
        16,
    ),
    Subject("one-hot tags", of(OneHotTags, "one-hot-product"), lambda scale: (ids(400, 8 * scale, 40),), 16),
    Subject("Fourier table", of(DoubleTables, "double-precision"), lambda scale: (x(2000 * scale, 3),), 32),
    Subject("grouped queries", of(RepeatedKeys, "repeated-keys"), lambda scale: (x(scale, 256, 512),), 8),
    Subject("segmenter", of(Segmenter, "resample-before-pointwise"), lambda scale: (x(scale, 3, 128, 128),), 32),
    Subject("signal twice", of(EnergyWindows, "repeated-work"), lambda scale: (x(8 * scale, 8, 1000),), 32),
    Subject("token writer", of(BeamCache, "grown-by-cat"), lambda scale: (ids(1000, 4 * scale, 1),)),
    Subject(
        "factorized field",
        of(FactorizedField, "consecutive-layers"),
        lambda scale: (x(64 * scale, 64),),
        32,
    ),
    Subject("speaker separation", of(GlobalNorms, "norm-by-hand"), lambda scale: (x(2 * scale, 1, 8000),), 16),
    Subject("click tower", of(ClickTower), lambda scale: (ids(20000, 256 * scale, 16),), 32),
    *(
        Subject(name, of(timm_model(name)), images(224), 32)
        for name in ("resnetblur18", "mobilenetv1_100", "efficientvit_b0", "regnetx_002", "edgenext_x_small", "dla46_c")
    ),
    *(Subject(name, of(vision_model(name)), images(224), 32) for name in ("shufflenet_v2_x1_0", "resnet18")),
    Subject("BERT", of(small_text("BertModel", "BertConfig")), words, 16),
    Subject("ELECTRA", of(small_text("ElectraModel", "ElectraConfig")), words, 16),
]
