"""Every piece of advice that is shown on a set of models, against what its change brings.

    python benchmarks/advice_shown.py predict [--roof | --on h200] -o predictions.json     # static analysis, no runs
    python benchmarks/advice_shown.py measure predictions.json [--cuda] -o measured.json     # check: nothing is timed
    python benchmarks/advice_shown.py compare predictions.json measured.json

A patch is run on a copy of the model, an edit is applied to a copy of its file, and where advice has neither, the
change is written here (`fix`). The models were not among those of `advice_gains.py`. Predictions hold the code, so that
what is measured is what was shown, and are committed before anything is measured. One thread; processor time on a CPU,
wall clock around a synchronized run on CUDA; old and new in turns, four rounds.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import math
import re
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Inputs = tuple[Any, ...]
Built = tuple[nn.Module, Inputs]


def x(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def ids(below: int, *shape: int) -> Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(0))


class SpeechEncoder(nn.Module):
    """Convolutions with batch norms over a spectrogram, and positions that are computed in every forward."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.convs = nn.ModuleList(nn.Conv1d(width, 192, 3, padding=1) for width in (80, 192, 192))
        self.norms = nn.ModuleList(nn.BatchNorm1d(192) for _ in range(3))
        self.layer = nn.TransformerEncoderLayer(192, 4, 384, batch_first=True, norm_first=True)
        self.register_buffer("table", self.positions(400), persistent=False)

    def positions(self, length: int) -> Tensor:
        at = torch.arange(length, dtype=torch.float32)[:, None]
        rates = torch.pow(10000.0, -torch.arange(0, 192, 2).float() / 192)
        table = torch.zeros(length, 192)
        table[:, 0::2] = torch.sin(at * rates)
        table[:, 1::2] = torch.cos(at * rates)
        return table

    def forward(self, mels: Tensor) -> Tensor:
        h = mels
        for conv, norm in zip(self.convs, self.norms, strict=True):
            h = F.relu(norm(conv(h)))
        h = h.transpose(1, 2)
        table = self.table if self.fix == "recomputed-constant" else self.positions(h.shape[1]).to(h.device)
        return self.layer(h + table)


class PointTower(nn.Module):
    """Clouds of points that go through a network one after the other."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.local = nn.Sequential(nn.Linear(3, 48), nn.ReLU(), nn.Linear(48, 96), nn.ReLU())
        self.head = nn.Linear(96, 20)

    def forward(self, clouds: Tensor) -> Tensor:
        if self.fix == "loop-over-samples":
            return self.head(self.local(clouds).amax(1))
        found = []
        for cloud in clouds:
            found.append(self.local(cloud).amax(0))
        return self.head(torch.stack(found))


class FeatureTokens(nn.Module):
    """A table whose columns have a linear layer each."""

    def __init__(self, fix: str = "", columns: int = 24, width: int = 32) -> None:
        super().__init__()
        self.fix = fix
        each = nn.ModuleList(nn.Linear(4, width) for _ in range(columns))
        if fix == "parallel-linears":
            self.weight = nn.Parameter(torch.stack([layer.weight.detach().T for layer in each]))
            self.bias = nn.Parameter(torch.stack([layer.bias.detach() for layer in each])[:, None])
        else:
            self.each = each
        self.body = nn.Sequential(nn.Linear(columns * width, 256), nn.ReLU(), nn.Linear(256, 2))

    def forward(self, rows: Tensor) -> Tensor:
        if self.fix == "parallel-linears":
            tokens = torch.baddbmm(self.bias, rows.transpose(0, 1), self.weight).transpose(0, 1)
        else:
            tokens = torch.stack([layer(rows[:, at]) for at, layer in enumerate(self.each)], 1)
        return self.body(tokens.flatten(1))


class CharCnn(nn.Module):
    """Characters as one-hot rows in front of convolutions."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.table = nn.Parameter(x(96, 64) / 8)
        self.convs = nn.ModuleList(nn.Conv1d(64, 64, size, padding=size // 2) for size in (3, 5))

    def forward(self, text: Tensor) -> Tensor:
        if self.fix == "one-hot-product":
            h = F.embedding(text, self.table)
        else:
            h = F.one_hot(text, 96).to(self.table.dtype) @ self.table
        h = h.transpose(1, 2)
        return torch.cat([F.relu(conv(h)).amax(-1) for conv in self.convs], 1)


class WrittenAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, width // heads
        self.to_q, self.to_k, self.to_v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, h: Tensor) -> Tensor:
        batch, length, width = h.shape
        q = self.to_q(h).view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        k = self.to_k(h).view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        v = self.to_v(h).view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.head_dim)
        weights = torch.softmax(scores, dim=-1)
        h = torch.matmul(weights, v)
        return self.out(h.transpose(1, 2).reshape(batch, length, width))


class MusicEncoder(nn.Module):
    """Attention that is written out, in three layers."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.inp = nn.Linear(40, 160)
        self.layers = nn.ModuleList(WrittenAttention(160, 5) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(160) for _ in range(3))

    def forward(self, h: Tensor) -> Tensor:
        h = self.inp(h)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            h = h + layer(norm(h))
        return h


class WindowNet(nn.Module):
    """Windows of an image that are cloned, and made contiguous more than once."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.stem = nn.Conv2d(3, 48, 4, 4)
        self.mix = nn.Linear(48, 48)

    def forward(self, images: Tensor) -> Tensor:
        h = self.stem(images)
        shortcut = h.clone()
        h = h.permute(0, 2, 3, 1).contiguous()
        h = self.mix(h)
        h = h.permute(0, 3, 1, 2).contiguous()
        return F.gelu(h + shortcut).clone().mean((2, 3))


class Sensor(nn.Module):
    """A window in float64 and a detour through half precision."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.up, self.down = nn.Linear(96, 384), nn.Linear(384, 96)
        window = torch.hann_window(384, dtype=torch.float64)
        self.register_buffer("window", window.float() if fix == "double-precision" else window)

    def forward(self, h: Tensor) -> Tensor:
        h = (torch.tanh(self.up(h)) * self.window).float()
        h = h.to(torch.float16).to(torch.float32)
        return self.down(h)


class Dialogue(nn.Module):
    """A GRU cell that is called for every token."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.table = nn.Embedding(3000, 96)
        cell = nn.GRUCell(96, 96)
        if fix == "loop-over-steps":
            self.layer = nn.GRU(96, 96, batch_first=True)
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                getattr(self.layer, f"{name}_l0").data.copy_(getattr(cell, name).data)
        else:
            self.cell = cell
        self.head = nn.Linear(96, 50)

    def forward(self, text: Tensor) -> Tensor:
        seen = self.table(text)
        if self.fix == "loop-over-steps":
            return self.head(self.layer(seen)[0])
        state = seen.new_zeros(text.shape[0], 96)
        found = []
        for at in range(text.shape[1]):
            state = self.cell(seen[:, at], state)
            found.append(state)
        return self.head(torch.stack(found, 1))


class LaneHead(nn.Module):
    """Features that are enlarged before the 1×1 convolution, behind convolutions with batch norms."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.down = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(32, 64, 3, 2, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        self.lanes = nn.Conv2d(64, 6, 1)

    def forward(self, images: Tensor) -> Tensor:
        h = self.body(self.down(images))
        if self.fix == "resample-before-pointwise":
            return F.interpolate(self.lanes(h), scale_factor=4, mode="bilinear", align_corners=False)
        return self.lanes(F.interpolate(h, scale_factor=4, mode="bilinear", align_corners=False))


class GroupedDecoder(nn.Module):
    """Keys and values that are copied for each head, under a causal mask that every layer makes anew."""

    def __init__(self, fix: str = "", width: int = 192, heads: int = 6, shared: int = 2) -> None:
        super().__init__()
        self.fix, self.heads, self.shared = fix, heads, shared
        size = width // heads
        self.q = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.kv = nn.ModuleList(nn.Linear(width, 2 * shared * size) for _ in range(2))
        self.up = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(2))
        self.down = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(2))
        self.register_buffer("mask", torch.full((192, 192), float("-inf")).triu(1), persistent=False)

    def forward(self, h: Tensor) -> Tensor:
        for q_proj, kv_proj, up, down in zip(self.q, self.kv, self.up, self.down, strict=True):
            b, n, width = h.shape
            q = q_proj(h).view(b, n, self.heads, -1).transpose(1, 2)
            k, v = kv_proj(h).view(b, n, 2, self.shared, -1).permute(2, 0, 3, 1, 4)
            gqa = self.fix == "repeated-keys"
            if not gqa:
                k = k.repeat_interleave(self.heads // self.shared, dim=1)
                v = v.repeat_interleave(self.heads // self.shared, dim=1)
            if self.fix == "causal-mask":
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=gqa)
            elif self.fix == "recomputed-constant":
                y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)
            else:
                mask = torch.full((n, n), float("-inf"), device=h.device).triu(1)
                y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=gqa)
            h = h + y.transpose(1, 2).reshape(b, n, width)
            h = h + down(F.silu(up(h)))
        return h


class FrozenNorm(nn.Module):
    def __init__(self, width: int, *, is_once: bool = False) -> None:
        super().__init__()
        self.is_once = is_once
        self.register_buffer("weight", 1 + 0.1 * x(width))
        self.register_buffer("bias", 0.1 * x(width))
        self.register_buffer("running_mean", 0.1 * x(width))
        self.register_buffer("running_var", 1 + 0.1 * x(width).abs())

        scale = self.weight * (self.running_var + 1e-5).rsqrt()
        self.register_buffer("scale", scale.view(1, -1, 1, 1), persistent=False)
        self.register_buffer("shift", (self.bias - self.running_mean * scale).view(1, -1, 1, 1), persistent=False)

    def forward(self, h: Tensor) -> Tensor:
        if self.is_once:
            return h * self.scale + self.shift
        scale = self.weight * (self.running_var + 1e-5).rsqrt()
        shift = self.bias - self.running_mean * scale
        return h * scale.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1)


class FrozenStage(nn.Module):
    """A detector's stage whose norms are frozen and written out."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.convs = nn.ModuleList(nn.Conv2d(a, 64, 1, bias=False) for a in (32, 64, 64))
        self.norms = nn.ModuleList(FrozenNorm(64, is_once=fix == "recomputed-weight") for _ in range(3))

    def folded(self) -> FrozenStage:
        """With the norms in the weights of the convolutions."""
        made = nn.ModuleList()
        with torch.no_grad():
            for conv, norm in zip(self.convs, self.norms, strict=True):
                scale = norm.weight * (norm.running_var + 1e-5).rsqrt()
                new = nn.Conv2d(conv.in_channels, 64, 1)
                new.weight.copy_(conv.weight * scale[:, None, None, None])
                new.bias.copy_(norm.bias - norm.running_mean * scale)
                made.append(new)
        other = copy.copy(self)
        other._modules = dict(self._modules)
        other.convs, other.norms = made, nn.ModuleList(nn.Identity() for _ in range(3))
        return other

    def forward(self, h: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            h = F.relu(norm(conv(h)))
        return h


class StandardConv(nn.Conv2d):
    """Its weight is standardised in every forward."""

    def forward(self, h: Tensor) -> Tensor:
        mean = self.weight.mean((1, 2, 3), keepdim=True)
        std = self.weight.std((1, 2, 3), keepdim=True)
        return F.conv2d(h, (self.weight - mean) / (std + 1e-5), self.bias, self.stride, self.padding)


class StandardNet(nn.Module):
    def __init__(self, fix: str = "") -> None:
        super().__init__()
        kind = nn.Conv2d if fix == "recomputed-weight" else StandardConv
        self.convs = nn.ModuleList(kind(a, b, 3, 2, 1) for a, b in ((3, 64), (64, 160), (160, 256)))
        self.norms = nn.ModuleList(nn.GroupNorm(8, b) for b in (64, 160, 256))

    def forward(self, h: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            h = F.silu(norm(conv(h)))
        return h.mean((2, 3))


class Generator(nn.Module):
    """A decoder that extends its keys and values by concatenation, token by token."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.qkv, self.out = nn.Linear(128, 384), nn.Linear(128, 128)

    def forward(self, h: Tensor) -> Tensor:
        b, steps, width = h.shape
        found = []
        if self.fix == "grown-by-cat":
            kept = h.new_empty(2, b, 4, steps, 32)
            for t in range(steps):
                q, k, v = self.qkv(h[:, t]).view(b, 3, 4, 32).unbind(1)
                kept[0, :, :, t], kept[1, :, :, t] = k, v
                y = F.scaled_dot_product_attention(q[:, :, None], kept[0, :, :, : t + 1], kept[1, :, :, : t + 1])
                found.append(self.out(y.reshape(b, width)))
            return torch.stack(found, 1)
        keys, values = h.new_empty(b, 4, 0, 32), h.new_empty(b, 4, 0, 32)
        projected = self.qkv(h).view(b, steps, 3, 4, 32) if self.fix == "loop-over-samples" else None
        for t in range(steps):
            made = self.qkv(h[:, t]).view(b, 3, 4, 32) if projected is None else projected[:, t]
            q, k, v = made.unbind(1)
            keys, values = torch.cat([keys, k[:, :, None]], 2), torch.cat([values, v[:, :, None]], 2)
            y = F.scaled_dot_product_attention(q[:, :, None], keys, values)
            found.append(self.out(y.reshape(b, width)))
        return torch.stack(found, 1)


class TokenMixer(nn.Module):
    """A GELU and a layer norm that are written out."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.up, self.down = nn.Linear(192, 768), nn.Linear(768, 192)
        self.gain, self.shift = nn.Parameter(torch.ones(192)), nn.Parameter(torch.zeros(192))

    def norm(self, h: Tensor) -> Tensor:
        if self.fix == "norm-by-hand":
            return F.layer_norm(h, (192,), self.gain, self.shift, 1e-6)
        mean = h.mean(-1, keepdim=True)
        variance = (h - mean).pow(2).mean(-1, keepdim=True)
        return self.gain * (h - mean) / torch.sqrt(variance + 1e-6) + self.shift

    def act(self, h: Tensor) -> Tensor:
        if self.fix == "gelu-by-hand":
            return F.gelu(h, approximate="tanh")
        return 0.5 * h * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (h + 0.044715 * torch.pow(h, 3.0))))

    def forward(self, h: Tensor) -> Tensor:
        return h + self.down(self.act(self.up(self.norm(h))))


class Retriever(nn.Module):
    """A cosine classifier behind a pooled text, whose weight is normalised in every forward."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.table, self.query = nn.Embedding(4000, 128), nn.Linear(128, 128)
        self.classes = nn.Parameter(x(2500, 128))

    def forward(self, text: Tensor) -> Tensor:
        h = self.query(self.table(text)).mean(1)
        classes = self.classes if self.fix == "recomputed-weight" else F.normalize(self.classes, dim=-1)
        return F.normalize(h, dim=-1) @ classes.T


class HeadByHead(nn.Module):
    """Attention over the slots of a scene, one head after the other."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.q, self.k, self.v, self.out = (nn.Linear(128, 128) for _ in range(4))

    def forward(self, h: Tensor) -> Tensor:
        q, k, v = self.q(h), self.k(h), self.v(h)
        if self.fix == "loop-over-samples":
            q, k, v = (t.unflatten(-1, (8, 16)).transpose(1, 2) for t in (q, k, v))
            weights = torch.softmax(q @ k.transpose(-2, -1) / 4.0, -1)
            return self.out((weights @ v).transpose(1, 2).flatten(2))
        found = []
        for at in range(0, 128, 16):
            weights = torch.softmax(q[..., at : at + 16] @ k[..., at : at + 16].transpose(1, 2) / 4.0, -1)
            found.append(weights @ v[..., at : at + 16])
        return self.out(torch.cat(found, -1))


class SharedTower(nn.Module):
    """A convolution whose result is computed for both branches."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.body = nn.Conv2d(24, 48, 3, padding=1)
        self.boxes, self.scores = nn.Conv2d(48, 16, 1), nn.Conv2d(48, 8, 1)

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        if self.fix == "repeated-work":
            made = F.relu(self.body(h))
            return self.boxes(made), self.scores(made)
        return self.boxes(F.relu(self.body(h))), self.scores(F.relu(self.body(h)))


class RelativeBias(nn.Module):
    """A bias of positions that is computed from shapes in every layer."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.qkv = nn.ModuleList(nn.Linear(96, 288) for _ in range(2))
        self.register_buffer("kept", self.bias(144), persistent=False)

    def bias(self, length: int, device: torch.device | None = None) -> Tensor:
        at = torch.arange(length, device=device)
        far = (at[:, None] - at[None, :]).abs().float()
        return -torch.log1p(far) * torch.tensor([1.0, 0.5, 0.25, 0.125], device=device)[:, None, None]

    def forward(self, h: Tensor) -> Tensor:
        for qkv in self.qkv:
            q, k, v = qkv(h).unflatten(-1, (3, 4, 24)).permute(2, 0, 3, 1, 4)
            bias = self.kept if self.fix == "recomputed-constant" else self.bias(h.shape[1], h.device)
            h = h + F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2)
        return h


class ErfMlp(nn.Module):
    """An exact GELU that is written out, between two linear layers."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.up, self.down = nn.Linear(128, 640), nn.Linear(640, 128)

    def forward(self, h: Tensor) -> Tensor:
        h = self.up(h)
        h = h * 0.5 * (1.0 + torch.erf(h / math.sqrt(2.0)))
        return self.down(h)


@dataclass(frozen=True)
class Subject:
    """`made` builds the model by the name of the rule whose advice it follows ("" for none); where one rule advises
    several changes (`is_by_place`), by "RULE at MODULE"."""

    name: str
    made: Callable[[str], nn.Module]
    inputs: Callable[[int], Inputs]
    cuda_scale: int = 8
    is_for_cuda: bool = True
    is_for_cpu: bool = True
    is_by_place: bool = False


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


def frozen_stage(fix: str) -> nn.Module:
    model = FrozenStage(fix)
    return model.folded() if fix == "affine-after-layer" else model


def images(side: int) -> Callable[[int], Inputs]:
    return lambda scale: (x(scale, 3, side, side),)


_SMALL = {"vocab_size": 2000, "bos_token_id": 0, "eos_token_id": 1}
SUBJECTS = [
    Subject("speech encoder", SpeechEncoder, lambda scale: (x(2 * scale, 80, 400),)),
    Subject("point clouds", PointTower, lambda scale: (x(12 * scale, 128, 3),)),
    Subject("columns of a table", FeatureTokens, lambda scale: (x(64 * scale, 24, 4),)),
    Subject("characters", CharCnn, lambda scale: (ids(96, 8 * scale, 200),)),
    Subject("music encoder", MusicEncoder, lambda scale: (x(2 * scale, 192, 40),)),
    Subject("windows", WindowNet, lambda scale: (x(2 * scale, 3, 160, 160),)),
    Subject("sensor", Sensor, lambda scale: (x(300 * scale, 96),)),
    Subject("dialogue", Dialogue, lambda scale: (ids(3000, 4 * scale, 36),)),
    Subject("lanes", LaneHead, lambda scale: (x(scale, 3, 128, 128),)),
    Subject("grouped decoder", GroupedDecoder, lambda scale: (x(2 * scale, 192, 192),)),
    Subject("frozen stage", frozen_stage, lambda scale: (x(2 * scale, 32, 48, 48),)),
    Subject("standardised weights", StandardNet, lambda scale: (x(2 * scale, 3, 48, 48),)),
    Subject("generator", Generator, lambda scale: (x(4 * scale, 32, 128),)),
    Subject("token mixer", TokenMixer, lambda scale: (x(2 * scale, 150, 192),)),
    *(Subject(name, timm_model(name), images(224)) for name in (
        "ghostnet_100", "rexnet_100", "tf_efficientnet_lite0", "hrnet_w18_small", "efficientformer_l1", "repvgg_a0",
    )),
    Subject("mobilevit_xxs", timm_model("mobilevit_xxs"), images(256)),
    Subject("Bloom", text_model("BloomModel", "BloomConfig", hidden_size=256, n_layer=4, n_head=4, **_SMALL),
            lambda scale: (ids(2000, scale, 128),)),
    Subject("GPT-Neo", text_model("GPTNeoModel", "GPTNeoConfig", hidden_size=256, num_layers=4, num_heads=4,
                                  attention_types=[[["global", "local"], 2]], **_SMALL),
            lambda scale: (ids(2000, scale, 128),)),
    Subject("FNet", text_model("FNetModel", "FNetConfig", hidden_size=256, num_hidden_layers=4, intermediate_size=1024,
                               **_SMALL), lambda scale: (ids(2000, scale, 128),)),
    Subject("CodeGen", text_model("CodeGenModel", "CodeGenConfig", n_embd=256, n_layer=4, n_head=4, rotary_dim=32,
                                  **_SMALL), lambda scale: (ids(2000, scale, 128),)),
    # A second set, written and predicted after the first was measured.
    Subject("retriever", Retriever, lambda scale: (ids(4000, 8 * scale, 30),)),
    Subject("head by head", HeadByHead, lambda scale: (x(2 * scale, 64, 128),)),
    Subject("shared tower", SharedTower, lambda scale: (x(scale, 24, 40, 40),)),
    Subject("relative bias", RelativeBias, lambda scale: (x(2 * scale, 144, 96),)),
    Subject("exact GELU", ErfMlp, lambda scale: (x(256 * scale, 128),)),
    *(Subject(name, timm_model(name), images(224)) for name in (
        "dla34", "skresnet18", "fbnetc_100", "semnasnet_075", "hardcorenas_a", "lcnet_100", "selecsls42b",
    )),
]  # fmt: skip


def built(subject: Subject, fix: str = "", source: ModuleType | None = None) -> nn.Module:
    """With the same weights each time; `source`: from an edited copy of this file."""
    torch.manual_seed(0)
    made = subject.made if source is None else next(s for s in source.SUBJECTS if s.name == subject.name).made
    return made(fix).eval()


def predict(chosen: list[Subject], on: str | None, output: Path | None) -> dict[str, Any]:
    """`output` is written after each model, here and in `measure`, so that a run that is stopped keeps its results."""
    import torchgauge as tg

    found: dict[str, Any] = {}
    for subject in chosen:
        scale = subject.cuda_scale if on else 1
        settings = {"on": on} if on else {}
        try:
            rows = tg.analyze(
                built(subject), inputs=subject.inputs(scale), device="cpu", progress=False, **settings
            ).to_dict()["advice"]
        except Exception as error:  # such as a model that the installed library does not have
            print(subject.name, f"{type(error).__name__}: {error}"[:300], flush=True)
            continue
        kept = []
        for row in rows:
            gain = row["expected_gain"]
            # The gain on another device than the one that is measured, and bugs, which have none.
            if gain is not None and (gain.get("device") == on or "device" not in gain):
                known = {"rule": row["rule"], "source": row["where"]["source"], "quantity": gain["quantity"],
                         "module": row["where"]["module"]}  # fmt: skip
                kept.append(known | {"low": gain["low"], "high": gain["high"], "basis": gain["basis"],
                                     "code_kind": row["code_kind"], "code": row["code"]})  # fmt: skip
        found[subject.name] = kept
        print(subject.name, [(row["rule"], round(row["low"], 4), round(row["high"], 4)) for row in kept], flush=True)
        if output:
            output.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return found


def measure_roof() -> None:
    """The rates of one thread, kept in `TORCHGAUGE_CACHE`, as `--inference` measures them once. Without them those of a
    typical server are assumed. Kernels are not measured: with those of `system --calibrate`, gains from fewer calls are
    understated."""
    from torchgauge.hardware import cpu_name
    from torchgauge.measure.calibrate import calibrate_device

    found = calibrate_device("cpu", cpu_name(), f"with torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(
        f"{found.name}: {found.flops_per_s.get('float32', 0) / 1e9:.0f} GFLOP/s, {found.bytes_per_s or 0:.3g} B/s",
        flush=True,
    )


def changed(subject: Subject, row: dict[str, Any], inputs: Inputs, device: str) -> tuple[nn.Module, Inputs]:
    """The model after the change that the advice shows, or that is written here for its rule."""
    if row["code_kind"] == "patch":
        names = {"model": built(subject).to(device), "torch": torch, "inputs": inputs}
        exec(row["code"], names)
        return names["model"].eval(), names["inputs"]
    file = Path((row["source"] or "").partition(":")[0]).name
    if row["code_kind"] == "edit" and Path(__file__).with_name(file).exists():  # not the file of a library
        return built(subject, source=edited(row["code"], file)), inputs
    return built(subject, f"{row['rule']} at {row['module']}" if subject.is_by_place else row["rule"]), inputs


def edited(diff: str, file: str) -> ModuleType:
    """A file of models with the changes of a diff without context."""
    lines = Path(__file__).with_name(file).read_text(encoding="utf-8").splitlines()
    hunks = re.split(r"^@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@\n", diff, flags=re.MULTILINE)[1:]
    for start, count, body in reversed(list(zip(hunks[::3], hunks[1::3], hunks[2::3], strict=True))):
        old = int(count or 1) if count is not None else 1
        new = [line[1:] for line in body.splitlines() if line.startswith("+")]
        at = int(start) - (1 if old else 0)
        lines[at : at + old] = new
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "advice_shown_edited.py"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        spec = importlib.util.spec_from_file_location(f"edited_{abs(hash(diff))}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    return module


def measure(chosen: list[Subject], expected: dict[str, Any], output: Path | None, *, cuda: bool) -> dict[str, Any]:
    from advice_gains import _ratios

    torch.set_num_threads(1)
    device = "cuda" if cuda else "cpu"
    found: dict[str, Any] = {}
    for subject in chosen:
        inputs = tuple(value.to(device) for value in subject.inputs(subject.cuda_scale if cuda else 1))
        found[subject.name] = []
        for row in expected.get(subject.name, []):
            try:
                new, given = changed(subject, row, inputs, device)
                if row["quantity"] == "time_s":
                    sides = [built(subject).to(device), new.to(device)]
                    with torch.inference_mode():
                        real = _ratios(sides, given, cuda=cuda) | {"agrees": _agrees(sides, inputs, given)}
                else:
                    real = _bytes_saved(built(subject), new, inputs, row["quantity"])
            except Exception as error:  # one that cannot run must not cost the others
                real = {"error": f"{type(error).__name__}: {error}"[:300]}
            found[subject.name].append(real)
            print(subject.name, row["rule"], f"{row['low']:.1%} to {row['high']:.1%}", real, flush=True)
        if output:
            output.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return found


def check(chosen: list[Subject], expected: dict[str, Any]) -> dict[str, Any]:
    """Whether each change that can be made on a CPU can be applied and agrees with the model; nothing is timed."""
    found: dict[str, Any] = {}
    for subject in chosen:
        inputs = subject.inputs(1)
        for row in expected.get(subject.name, []):
            if "cuda" in (row["code"] or ""):
                continue
            try:
                new, given = changed(subject, row, inputs, "cpu")
                with torch.inference_mode():
                    what = "agrees" if _agrees([built(subject), new], inputs, given) else "DIFFERS"
            except Exception as error:
                what = f"{type(error).__name__}: {error}"[:300]
            found[f"{subject.name}: {row['rule']}"] = what
            print(subject.name, row["rule"], row["code_kind"], what, flush=True)
    return found


def _agrees(sides: list[nn.Module], inputs: Inputs, given: Inputs) -> bool:
    one, other = (side(*own) for side, own in zip(sides, (inputs, given), strict=True))
    one, other = (value if isinstance(value, Tensor) else value[0] for value in (one, other))
    return bool((one - other).abs().max() <= 2e-2 * one.abs().max().clamp_min(1e-3))


def _bytes_saved(old: nn.Module, new: nn.Module, inputs: Inputs, quantity: str) -> dict[str, float]:
    import torchgauge as tg

    with torch.inference_mode(False):
        sizes = [tg.analyze(side, inputs=inputs, progress=False).to_dict()["totals"][quantity] for side in (old, new)]
    gain = 1 - sizes[1] / sizes[0]
    return {"gain": gain, "low": gain, "high": gain}


def compare(expected: dict[str, Any], measured: dict[str, Any]) -> None:
    held, widths, total = 0, [], 0
    for name, rows in expected.items():
        for row, real in zip(rows, measured.get(name, []), strict=False):
            how = row["code_kind"] or "by hand"
            what = f"| {name} | `{row['rule']}` ({how}) | {row['low']:.1%} to {row['high']:.1%} |"
            if "error" in real:
                print(what, "not run:", real["error"][:80], "| |")
                continue
            is_held = row["low"] - 0.005 <= real["gain"] <= row["high"] + 0.005
            held, total = held + is_held, total + 1
            widths.append(row["high"] / row["low"] if row["low"] else math.inf)
            print(
                what, f"{real['gain']:.1%} ({real['low']:.1%} to {real['high']:.1%}) | {'yes' if is_held else 'no'} |"
            )
    print(f"\nheld {held} of {total} ({held / max(total, 1):.0%}); median width {statistics.median(widths):.2f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("predict", "check", "measure", "compare"))
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument(
        "--set", choices=("first", "third", "fourth", "fifth"), default="first", help="first: with the second"
    )
    parser.add_argument("--on")
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--part", default="1/1", help="of the models, as 2/3")
    parser.add_argument("--only", default="", help="names of models, with commas")
    parser.add_argument("--roof", action="store_true", help="predict: measure this processor's peak rates first")
    parser.add_argument("-o", dest="output", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    part, parts = map(int, options.part.split("/"))
    later = {"third": "advice_shown_third", "fourth": "advice_shown_fourth", "fifth": "advice_shown_fifth"}
    subjects = importlib.import_module(later[options.set]).SUBJECTS if options.set in later else SUBJECTS
    names = options.only.split(",") if options.only else [subject.name for subject in subjects]
    on_cuda = options.cuda or options.on is not None
    able = [s for s in subjects if options.what == "check" or (s.is_for_cuda if on_cuda else s.is_for_cpu)]
    chosen = [subject for subject in able if subject.name in names][part - 1 :: parts]
    known = [json.loads(path.read_text(encoding="utf-8")) for path in options.files]
    if options.what == "compare":
        merged: dict[str, Any] = {}
        for found in known[1:]:
            merged |= found
        compare(known[0], merged)
        return 0
    started = time.monotonic()
    if options.what == "predict":
        if options.roof:
            measure_roof()
        result = predict(chosen, options.on, options.output)
    elif options.what == "check":
        result = check(chosen, known[0])
    else:
        result = measure(chosen, known[0], options.output, cuda=options.cuda)
    print(f"{time.monotonic() - started:.0f} s", flush=True)
    if options.output:
        options.output.write_text(json.dumps(result, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
