"""The third set of `advice_gains.py`: 20 models written after the last change of the gains. Predictions for them were
committed before any of them was run (`advice_unseen_predictions.json`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from advice_gains import Case, Does, Sides, folded, x
from torch import Tensor, nn


def classes(count: int, *shape: int) -> Tensor:
    return torch.randint(0, count, shape, generator=torch.Generator().manual_seed(0))


def skip_clones(scale: int) -> Sides:
    """An hourglass that clones its skip connections."""

    def made(keep: Callable[[Tensor], Tensor]) -> nn.Module:
        def run(self: Any, h: Tensor) -> Tensor:
            one = F.relu(self.a(h))
            two = F.relu(self.b(one))
            up = F.interpolate(F.relu(self.c(two)), scale_factor=2.0)
            return self.d(torch.cat([up, keep(one)], 1))

        torch.manual_seed(0)
        parts = {"a": nn.Conv2d(3, 24, 3, padding=1), "b": nn.Conv2d(24, 48, 3, 2, 1), "c": nn.Conv2d(48, 24, 1)}
        return Does(run, **parts, d=nn.Conv2d(48, 8, 1))

    return made(lambda t: t.clone()), made(lambda t: t), (x(2 * scale, 3, 128, 128),)


def pooled_contiguous(scale: int) -> Sides:
    """A time-series encoder that makes a transposed tensor contiguous before a mean."""
    parts = {"conv": nn.Conv1d(32, 64, 5, padding=2), "head": nn.Linear(64, 10)}
    before = Does(lambda self, h: self.head(F.relu(self.conv(h)).transpose(1, 2).contiguous().mean(1)), **parts)
    after = Does(lambda self, h: self.head(F.relu(self.conv(h)).transpose(1, 2).mean(1)), **parts)
    return before, after, (x(8 * scale, 32, 400),)


def bfloat_detour(scale: int) -> Sides:
    """Features that go through bfloat16 on their way to the head."""
    parts = {"up": nn.Linear(128, 512), "head": nn.Linear(512, 32)}
    before = Does(lambda self, h: self.head(F.gelu(self.up(h)).to(torch.bfloat16).to(torch.float32)), **parts)
    return before, Does(lambda self, h: self.head(F.gelu(self.up(h))), **parts), (x(512 * scale, 128),)


def gru_for_ranking(scale: int) -> Sides:
    """A session recommender whose GRU cell is called for every click."""
    table, cell, layer = nn.Embedding(5000, 64), nn.GRUCell(64, 128), nn.GRU(64, 128, batch_first=True)

    def clicks(self: Any, ids: Tensor) -> Tensor:
        seen = self.table(ids)
        state = seen.new_zeros(ids.shape[0], 128)
        for at in range(ids.shape[1]):
            state = self.cell(seen[:, at], state)
        return state

    after = Does(lambda self, ids: self.layer(self.table(ids))[1][0], table=table, layer=layer)
    return Does(clicks, table=table, cell=cell), after, (classes(5000, 64 * scale, 30),)


def lstm_over_frames(scale: int) -> Sides:
    """A caption decoder that calls an LSTM cell for every frame."""
    cell, layer, head = nn.LSTMCell(96, 192), nn.LSTM(96, 192, batch_first=True), nn.Linear(192, 50)

    def frames(self: Any, h: Tensor) -> Tensor:
        state, found = None, []
        for frame in h.unbind(1):
            state = self.cell(frame, state)
            found.append(self.head(state[0]))
        return torch.stack(found, 1)

    after = Does(lambda self, h: self.head(self.layer(h)[0]), layer=layer, head=head)
    return Does(frames, cell=cell, head=head), after, (x(16 * scale, 24, 96),)


def nonlocal_block(scale: int) -> Sides:
    """Attention over the positions of an image, with one head."""
    parts = {"stem": nn.Conv2d(3, 48, 3, 2, 1), "qkv": nn.Linear(48, 144), "out": nn.Linear(48, 48)}

    def tokens(self: Any, h: Tensor) -> tuple[Tensor, ...]:
        return self.qkv(self.stem(h).flatten(2).transpose(1, 2)).unsqueeze(1).chunk(3, -1)

    def written(self: Any, h: Tensor) -> Tensor:
        q, k, v = tokens(self, h)
        return self.out((q @ k.transpose(-1, -2) / math.sqrt(48)).softmax(-1) @ v)

    def fused(self: Any, h: Tensor) -> Tensor:
        q, k, v = tokens(self, h)
        return self.out(F.scaled_dot_product_attention(q, k, v))

    return Does(written, **parts), Does(fused, **parts), (x(scale, 3, 80, 80),)


def cross_attention(scale: int) -> Sides:
    """Queries that attend to a longer memory, in four heads."""
    parts = {"q": nn.Linear(128, 128), "kv": nn.Linear(128, 256), "out": nn.Linear(128, 128)}

    def made(attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> nn.Module:
        def run(self: Any, h: Tensor, memory: Tensor) -> Tensor:
            q = self.q(h).unflatten(-1, (4, 32)).transpose(1, 2)
            k, v = self.kv(memory).unflatten(-1, (2, 4, 32)).permute(2, 0, 3, 1, 4)
            return self.out(attend(q, k, v).transpose(1, 2).flatten(2))

        return Does(run, **parts)

    by_hand = made(lambda q, k, v: torch.softmax(torch.matmul(q, k.transpose(-2, -1)) * 32**-0.5, dim=-1) @ v)
    return by_hand, made(F.scaled_dot_product_attention), (x(2 * scale, 64, 128), x(2 * scale, 512, 128))


def alibi(scale: int) -> Sides:
    """A bias by distance that is computed in every forward."""
    parts = {"qkv": nn.Linear(128, 384), "out": nn.Linear(128, 128)}

    def bias() -> Tensor:
        at = torch.arange(192)
        slopes = 2.0 ** -torch.arange(1, 5).float()
        return -(at[None] - at[:, None]).abs().float() * slopes[:, None, None]

    def attended(self: Any, h: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.qkv(h).unflatten(-1, (3, 4, 32)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))

    before = Does(lambda self, h: attended(self, h, bias().to(h.device)), **parts)
    return before, Does(lambda self, h: attended(self, h, self.bias), **parts, bias=bias()), (x(2 * scale, 192, 128),)


def coordinates(scale: int) -> Sides:
    """CoordConv: a grid of positions that is made anew for each image."""
    conv, head = nn.Conv2d(10, 16, 3, padding=1), nn.Conv2d(16, 4, 1)

    def grid() -> Tensor:
        line = torch.linspace(-1, 1, 96)
        return torch.stack(torch.meshgrid(line, line, indexing="ij"))[None]

    def run(self: Any, h: Tensor, where: Tensor) -> Tensor:
        return self.head(F.relu(self.conv(torch.cat([h, where.expand(h.shape[0], -1, -1, -1)], 1))))

    parts = {"conv": conv, "head": head}
    before = Does(lambda self, h: run(self, h, grid().to(h.device)), **parts)
    return before, Does(lambda self, h: run(self, h, self.grid), **parts, grid=grid()), (x(2 * scale, 8, 96, 96),)


def spectral(scale: int) -> Sides:
    """A low-rank adapter that is multiplied into its weight at every call."""
    weight, down, up = nn.Parameter(x(384, 384)), nn.Parameter(x(8, 384)), nn.Parameter(x(384, 8))
    parts = {"weight": weight, "down": down, "up": up}
    before = Does(lambda self, h: F.linear(h, self.weight + 0.5 * self.up @ self.down), **parts)
    with torch.no_grad():
        merged = nn.Parameter(weight + 0.5 * up @ down)
    return before, Does(lambda self, h: F.linear(h, self.weight), weight=merged), (x(64 * scale, 384),)


def quantiles(scale: int) -> Sides:
    """A forecaster with one linear for each of nine quantiles."""
    body, many, one = nn.Linear(96, 192), nn.ModuleList(nn.Linear(192, 24) for _ in range(9)), nn.Linear(192, 216)

    def each(self: Any, h: Tensor) -> Tensor:
        h = torch.relu(self.body(h))
        return torch.stack([head(h) for head in self.many], -1)

    after = Does(lambda self, h: self.one(torch.relu(self.body(h))).unflatten(-1, (24, 9)), body=body, one=one)
    return Does(each, body=body, many=many), after, (x(64 * scale, 96),)


def tiles(scale: int) -> Sides:
    """Tiles of an image that go through a network one by one."""
    body = nn.Sequential(nn.Conv2d(3, 24, 5, 2), nn.ReLU(), nn.Conv2d(24, 24, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    before = Does(lambda self, h: torch.stack([self.body(tile.unsqueeze(0))[0] for tile in h]), body=body)
    return before, Does(lambda self, h: self.body(h), body=body), (x(16 * scale, 3, 32, 32),)


def tanh_gelu(scale: int) -> Sides:
    """An audio encoder whose GELU is written out."""
    parts = {"conv": nn.Conv1d(40, 128, 3, padding=1), "up": nn.Linear(128, 512), "down": nn.Linear(512, 128)}

    def run(self: Any, h: Tensor, activate: Callable[[Tensor], Tensor]) -> Tensor:
        return self.down(activate(self.up(self.conv(h).transpose(1, 2))))

    def written(h: Tensor) -> Tensor:
        return h * 0.5 * (1.0 + torch.erf(h / math.sqrt(2.0)))

    return (
        Does(lambda self, h: run(self, h, written), **parts),
        Does(lambda self, h: run(self, h, F.gelu), **parts),
        (x(2 * scale, 40, 300),),
    )


def instance_norms(scale: int) -> Sides:
    """A style network whose norm over channels is written out."""
    convs = nn.ModuleList(nn.Conv2d(24, 24, 3, padding=1) for _ in range(2))
    scales, shifts = (nn.Parameter(x(24)) for _ in range(2))

    def written(h: Tensor, s: Tensor, b: Tensor) -> Tensor:
        h = h.permute(0, 2, 3, 1)
        mean = h.mean(-1, keepdim=True)
        var = (h - mean).pow(2).mean(-1, keepdim=True)
        return ((h - mean) / torch.sqrt(var + 1e-5) * s + b).permute(0, 3, 1, 2)

    def fused(h: Tensor, s: Tensor, b: Tensor) -> Tensor:
        return F.layer_norm(h.permute(0, 2, 3, 1), (24,), s, b).permute(0, 3, 1, 2)

    def made(norm: Callable[..., Tensor]) -> nn.Module:
        def run(self: Any, h: Tensor) -> Tensor:
            for conv in self.convs:
                h = torch.relu(norm(conv(h), self.s, self.b))
            return h

        return Does(run, convs=convs, s=scales, b=shifts)

    return made(written), made(fused), (x(scale, 24, 64, 64),)


def frozen_detection(scale: int) -> Sides:
    """A backbone's stage with frozen norms, as in DETR."""
    convs, folded_ = (nn.ModuleList(nn.Conv2d(32, 32, 3, padding=1, bias=b) for _ in range(3)) for b in (False, True))
    scale_, shift = x(1, 32, 1, 1), x(1, 32, 1, 1)

    def frozen(self: Any, h: Tensor) -> Tensor:
        for conv in self.convs:
            h = F.relu(conv(h) * self.scale + self.shift)
        return h

    def folded_run(self: Any, h: Tensor) -> Tensor:
        for conv in self.convs:
            h = F.relu(conv(h))
        return h

    before = Does(frozen, convs=convs, scale=scale_, shift=shift)
    return before, Does(folded_run, convs=folded_), (x(2 * scale, 32, 56, 56),)


def depth_head(scale: int) -> Sides:
    """A depth estimator that enlarges its features before the last 1×1 convolution."""
    parts = {"body": nn.Conv2d(16, 48, 3, padding=1), "head": nn.Conv2d(48, 8, 1)}
    before = Does(
        lambda self, h: self.head(F.interpolate(F.relu(self.body(h)), scale_factor=4.0, mode="bilinear")), **parts
    )
    after = Does(
        lambda self, h: F.interpolate(self.head(F.relu(self.body(h))), scale_factor=4.0, mode="bilinear"), **parts
    )
    return before, after, (x(scale, 16, 40, 40),)


def one_hot_atoms(scale: int) -> Sides:
    """Atoms of a molecule by a one-hot product."""
    parts = {"atoms": nn.Linear(120, 96, bias=False), "body": nn.Linear(96, 96)}

    def looked_up(self: Any, ids: Tensor) -> Tensor:
        return self.body(torch.relu(F.embedding(ids, self.rows)))

    before = Does(lambda self, ids: self.body(torch.relu(self.atoms(F.one_hot(ids, 120).float()))), **parts)
    after = Does(looked_up, **parts, rows=parts["atoms"].weight.detach().T.contiguous())
    return before, after, (classes(120, 32 * scale, 40),)


def double_mask(scale: int) -> Sides:
    """A table of weights in float64 that came from numpy."""
    parts = {"body": nn.Linear(64, 256), "head": nn.Linear(256, 16)}
    window = torch.hann_window(256, dtype=torch.float64)
    before = Does(
        lambda self, h: self.head((torch.sigmoid(self.body(h)) * self.window).float()), **parts, window=window
    )
    after = Does(lambda self, h: self.head(torch.sigmoid(self.body(h)) * self.window), **parts, window=window.float())
    return before, after, (x(256 * scale, 64),)


CASES = [
    Case("hourglass: skips without clones", ("needless-copy",), skip_clones),
    Case("time series: no contiguous() before mean", ("needless-copy",), pooled_contiguous),
    Case("MLP: no detour through bfloat16", ("cast-round-trip",), bfloat_detour),
    Case("session recommender: GRU", ("loop-over-steps",), gru_for_ranking),
    Case("captions: LSTM", ("loop-over-steps",), lstm_over_frames),
    Case("non-local block: fused attention", ("attention-by-hand",), nonlocal_block),
    Case("cross attention, fused", ("attention-by-hand",), cross_attention),
    Case("ALiBi in a buffer", ("recomputed-constant",), alibi),
    Case("CoordConv's grid in a buffer", ("recomputed-constant",), coordinates),
    Case("an adapter merged", ("recomputed-weight",), spectral),
    Case("one linear for 9 quantiles", ("parallel-linears",), quantiles),
    Case("tiles at once", ("loop-over-samples",), tiles),
    Case("audio encoder: torch's GELU", ("gelu-by-hand",), tanh_gelu),
    Case("style network: torch's layer norm", ("norm-by-hand",), instance_norms),
    Case("frozen norms of a stage folded", ("affine-after-layer",), frozen_detection),
    Case("depth head before upsampling", ("resample-before-pointwise",), depth_head),
    Case("atoms looked up", ("one-hot-product",), one_hot_atoms),
    Case("a window in float32", ("double-precision",), double_mask),
    Case("batch norms folded: mobilenet_v3_large", ("conv-bn-fusion",), folded("mobilenet_v3_large")),
    Case("batch norms folded: resnet34", ("conv-bn-fusion",), folded("resnet34")),
    Case("batch norms folded: efficientnet_v2_s", ("conv-bn-fusion",), folded("efficientnet_v2_s")),
    Case("batch norms folded: regnet_x_800mf", ("conv-bn-fusion",), folded("regnet_x_800mf")),
]
