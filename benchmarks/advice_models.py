"""The second set of `advice_gains.py`: whole small models, each before and after one change. Predictions for them were
saved before any of them was run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from advice_gains import Case, Does, Sides, folded, x
from torch import Tensor, nn


class Attention(nn.Module):
    """`how` gets queries, keys and values of all heads."""

    def __init__(self, width: int, heads: int, how: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.qkv, self.out, self.heads, self.how = nn.Linear(width, 3 * width), nn.Linear(width, width), heads, how

    def forward(self, h: Tensor) -> Tensor:
        batch, length, width = h.shape
        q, k, v = self.qkv(h).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        out: Tensor = self.out(self.how(q, k, v).transpose(1, 2).reshape(batch, length, width))
        return out


class Block(nn.Module):
    def __init__(self, width: int, mixing: nn.Module, norm: Callable[[], nn.Module] | None = None) -> None:
        super().__init__()
        make = norm or (lambda: nn.LayerNorm(width))
        self.first, self.second, self.mixing = make(), make(), mixing
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, h: Tensor) -> Tensor:
        h = h + self.mixing(self.first(h))
        out: Tensor = h + self.mlp(self.second(h))
        return out


def _sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def _written(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1) @ v


def _by_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.stack([_written(q[:, at], k[:, at], v[:, at]) for at in range(q.shape[1])], 1)


def _masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.full((q.shape[2], q.shape[2]), -math.inf, device=q.device).triu(1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def blocks(
    before: Callable[[Tensor, Tensor, Tensor], Tensor], after: Callable[[Tensor, Tensor, Tensor], Tensor], length: int
) -> Callable[[int], Sides]:
    def build(scale: int) -> Sides:
        sides = (nn.Sequential(*(Block(192, Attention(192, 6, how)) for _ in range(3))) for how in (before, after))
        return *sides, (x(scale, length, 192),)

    return build


class RmsByHand(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, h: Tensor) -> Tensor:
        return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class LayerNormByHand(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, h: Tensor) -> Tensor:
        centred = h - h.mean(-1, keepdim=True)
        return centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight + self.bias


def normed(by_hand: Callable[[int], nn.Module], torchs: Callable[[int], nn.Module]) -> Callable[[int], Sides]:
    def build(scale: int) -> Sides:
        sides = (
            nn.Sequential(*(Block(256, Attention(256, 4, _sdpa), lambda make=make: make(256)) for _ in range(3)))
            for make in (by_hand, torchs)
        )
        return *sides, (x(scale, 128, 256),)

    return build


def gru(scale: int) -> Sides:
    cell, layer, head = nn.GRUCell(96, 96), nn.GRU(96, 96, batch_first=True), nn.Linear(96, 20)

    def steps(self: Any, h: Tensor) -> Tensor:
        state, seen = h.new_zeros(h.shape[0], 96), []
        for part in h.unbind(1):
            state = self.cell(part, state)
            seen.append(state)
        return self.head(torch.stack(seen, 1).mean(1))

    after = Does(lambda self, h: self.head(self.layer(h)[0].mean(1)), layer=layer, head=head)
    return Does(steps, cell=cell, head=head), after, (x(4 * scale, 40, 96),)


def images_one_by_one(scale: int) -> Sides:
    body = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    before = Does(lambda self, h: torch.cat([self.body(image[None]) for image in h]), body=body)
    return before, Does(lambda self, h: self.body(h), body=body), (x(8 * scale, 3, 64, 64),)


def many_tasks(scale: int) -> Sides:
    body = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU())
    heads, one = nn.ModuleList(nn.Linear(512, 3) for _ in range(12)), nn.Linear(512, 36)

    def each(self: Any, h: Tensor) -> Tensor:
        h = self.body(h)
        return torch.stack([head(h) for head in self.heads], 1)

    before = Does(each, body=body, heads=heads)
    return (
        before,
        Does(lambda self, h: self.one(self.body(h)).unflatten(1, (12, 3)), body=body, one=one),
        (x(32 * scale, 128),),
    )


def cosine_classifier(scale: int) -> Sides:
    body = nn.Sequential(nn.Linear(256, 256), nn.ReLU())
    weight = nn.Parameter(x(2000, 256))

    def classified(self: Any, h: Tensor) -> Tensor:
        return F.linear(F.normalize(self.body(h), dim=-1), F.normalize(self.weight, dim=-1))

    fixed = nn.Parameter(F.normalize(weight.detach(), dim=-1))
    after = Does(lambda self, h: F.linear(F.normalize(self.body(h), dim=-1), self.weight), body=body, weight=fixed)
    return Does(classified, body=body, weight=weight), after, (x(32 * scale, 256),)


def decoder(scale: int) -> Sides:
    """A feature pyramid's decoder: a 1×1 convolution behind each upsampling."""
    convs = nn.ModuleList(nn.Conv2d(64, 64, 3, padding=1) for _ in range(2))
    laterals = nn.ModuleList(nn.Conv2d(64, 32, 1) for _ in range(2))

    def enlarged(self: Any, h: Tensor) -> Tensor:
        parts = [
            lateral(F.interpolate(conv(h), scale_factor=2.0))
            for conv, lateral in zip(self.convs, self.laterals, strict=True)
        ]
        return torch.cat(parts, 1)

    def before_it(self: Any, h: Tensor) -> Tensor:
        parts = [
            F.interpolate(lateral(conv(h)), scale_factor=2.0)
            for conv, lateral in zip(self.convs, self.laterals, strict=True)
        ]
        return torch.cat(parts, 1)

    parts = {"convs": convs, "laterals": laterals}
    return Does(enlarged, **parts), Does(before_it, **parts), (x(scale, 64, 96, 96),)


def layer_scales(scale: int) -> Sides:
    """Blocks as ConvNeXt has them, with a scale behind the last layer."""

    def made(*, scaled: bool) -> nn.Module:
        def run(self: Any, h: Tensor) -> Tensor:
            y = self.norm(self.dw(h).permute(0, 2, 3, 1))
            y = self.down(F.gelu(self.up(y)))
            y = self.gamma * y if scaled else y
            return h + y.permute(0, 3, 1, 2)

        parts = {"dw": nn.Conv2d(64, 64, 7, padding=3, groups=64), "norm": nn.LayerNorm(64)}
        layers = {"up": nn.Linear(64, 256), "down": nn.Linear(256, 64)}
        return Does(run, **parts, **layers, gamma=nn.Parameter(x(64)))

    sides = (nn.Sequential(*(made(scaled=scaled) for _ in range(3))) for scaled in (True, False))
    return *sides, (x(scale, 64, 28, 28),)


def conditioned(scale: int) -> Sides:
    """A generator that looks up its class by a one-hot product."""
    parts = {"table": nn.Linear(1000, 128, bias=False), "body": nn.Sequential(nn.Linear(256, 512), nn.ReLU())}

    def multiplied(self: Any, z: Tensor, y: Tensor) -> Tensor:
        return self.body(torch.cat([z, self.table(F.one_hot(y, 1000).float())], 1))

    def looked_up(self: Any, z: Tensor, y: Tensor) -> Tensor:
        return self.body(torch.cat([z, F.embedding(y, self.turned)], 1))

    after = Does(looked_up, **parts, turned=parts["table"].weight.detach().T.contiguous())
    classes = torch.randint(0, 1000, (32 * scale,), generator=torch.Generator().manual_seed(0))
    return Does(multiplied, **parts), after, (x(32 * scale, 128), classes)


def cache(scale: int) -> Sides:
    """Decoding with a cache of keys and values that grows by cat, against one that is filled."""
    parts, steps = {"qkv": nn.Linear(128, 384), "out": nn.Linear(128, 128)}, 24

    def split(self: Any, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(h).view(h.shape[0], 1, 3, 4, 32).permute(2, 0, 3, 1, 4)
        return q, k, v

    def growing(self: Any, h: Tensor) -> Tensor:
        keys = values = h.new_zeros(h.shape[0], 4, 64, 32)
        for _ in range(steps):
            q, k, v = split(self, h)
            keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
            h = self.out(F.scaled_dot_product_attention(q, keys, values).transpose(1, 2).flatten(2))
        return h

    def filled(self: Any, h: Tensor) -> Tensor:
        keys, values = (h.new_zeros(h.shape[0], 4, 64 + steps, 32) for _ in range(2))
        for step in range(steps):
            q, k, v = split(self, h)
            end = 64 + step + 1
            keys[:, :, end - 1 : end], values[:, :, end - 1 : end] = k, v
            h = self.out(
                F.scaled_dot_product_attention(q, keys[:, :, :end], values[:, :, :end]).transpose(1, 2).flatten(2)
            )
        return h

    return Does(growing, **parts), Does(filled, **parts), (x(4 * scale, 1, 128),)


def gpt2(scale: int) -> Sides:
    from torchgauge.source.packages import import_optional

    transformers = import_optional("transformers", "the benchmark")

    def made(activation: str) -> nn.Module:
        torch.manual_seed(0)
        config = transformers.GPT2Config(
            n_embd=256, n_layer=4, n_head=4, vocab_size=2000, activation_function=activation, use_cache=False
        )
        return Does(lambda self, ids: self.model(ids).last_hidden_state, model=transformers.GPT2Model(config))

    ids = torch.randint(0, 2000, (scale, 128), generator=torch.Generator().manual_seed(0))
    return made("gelu_new"), made("gelu_pytorch_tanh"), (ids,)


def sinc(scale: int) -> Sides:
    """Filters that are computed from two parameters each at every call."""
    low, band = nn.Parameter(x(64, 1).abs() + 0.1), nn.Parameter(x(64, 1).abs())
    conv = nn.Conv1d(64, 64, 5)
    times = torch.linspace(-1, 1, 251)[None]

    def filters(self: Any) -> Tensor:
        high = self.low + self.band
        shape = torch.sin(high * self.times * math.pi) - torch.sin(self.low * self.times * math.pi)
        return (shape / (self.times + 1e-4) * (0.54 + 0.46 * torch.cos(self.times * math.pi)))[:, None]

    parts = {"low": low, "band": band, "times": times, "conv": conv}
    before = Does(lambda self, h: self.conv(F.relu(F.conv1d(h, filters(self), stride=8))), **parts)
    with torch.no_grad():
        fixed = filters(before)
    after = Does(lambda self, h: self.conv(F.relu(F.conv1d(h, self.fixed, stride=8))), conv=conv, fixed=fixed)
    return before, after, (x(scale, 1, 4000),)


def doubled_scores(scale: int) -> Sides:
    """A bias of distances in float64 that widens the scores."""
    parts = {"body": nn.Linear(192, 192), "head": nn.Linear(192, 192)}
    bias = -(torch.arange(128)[:, None] - torch.arange(128)).abs().double()

    def wide(self: Any, h: Tensor) -> Tensor:
        y = self.body(h)
        return self.head((y @ y.transpose(1, 2) / 14 + self.bias).softmax(-1).float() @ y)

    def narrow(self: Any, h: Tensor) -> Tensor:
        y = self.body(h)
        return self.head((y @ y.transpose(1, 2) / 14 + self.bias).softmax(-1) @ y)

    return Does(wide, **parts, bias=bias), Does(narrow, **parts, bias=bias.float()), (x(2 * scale, 128, 192),)


CASES = [
    Case("ViT blocks: fused attention", ("attention-by-hand",), blocks(_written, _sdpa, 197)),
    Case("ViT blocks: heads at once", ("loop-over-samples",), blocks(_by_head, _written, 64)),
    Case("decoder blocks: `is_causal`", ("causal-mask", "recomputed-constant"), blocks(_masked, _causal, 256)),
    Case("torch's layer norm in 3 blocks", ("norm-by-hand",), normed(LayerNormByHand, nn.LayerNorm)),
    Case("torch's RMS norm in 3 blocks", ("norm-by-hand",), normed(RmsByHand, lambda width: nn.RMSNorm(width, 1e-6))),
    Case("GRU for GRUCell, 40 steps", ("loop-over-steps",), gru),
    Case("images at once", ("loop-over-samples",), images_one_by_one),
    Case("one head for 12 tasks", ("parallel-linears",), many_tasks),
    Case("a cosine classifier's weight normalised once", ("recomputed-weight",), cosine_classifier),
    Case("1×1 before upsampling in a decoder", ("resample-before-pointwise",), decoder),
    Case("layer scales folded", ("affine-after-layer",), layer_scales),
    Case("a class looked up", ("one-hot-product",), conditioned),
    Case("a filled cache", ("grown-by-cat",), cache),
    Case("GPT-2: torch's GELU", ("gelu-by-hand",), gpt2),
    Case("sinc filters computed once", ("recomputed-weight",), sinc),
    Case("a bias of scores in float32", ("double-precision",), doubled_scores),
    Case("batch norms folded: resnext50_32x4d", ("conv-bn-fusion",), folded("resnext50_32x4d")),
    Case("batch norms folded: densenet121", ("conv-bn-fusion",), folded("densenet121")),
]
