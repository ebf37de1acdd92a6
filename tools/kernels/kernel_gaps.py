"""Which kernels of models have no measured neighbour, and a list that fills these gaps.

Drawn are functions of all modules of torch in sizes that models have, with their gradients, and steps of all
optimizers; it traces them as a forecast traces a model and looks for the nearest measured kernel of each call. A call
without one within `NEAR` octaves is a gap. `gap_draw` lists the gaps, kinds without any row first.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from math import inf, log2, prod
from typing import Any, NamedTuple

import numpy as np
import torch
from kernel_draws import (  # type: ignore[import-not-found]
    UNNAMED,
    Draw,
    Drawn,
    Heads,
    attention,
    attention_call,
    balanced,
    cold_flags,
    convolution,
    described,
    image_convolution,
    left_over,
    long_attention,
    recurrent,
)
from kernel_layers import (  # type: ignore[import-not-found]
    MOST_PRODUCTS,
    OPS_OF,
    TYPES,
    ConvolutionLayer,
    convolution_calls,
    listed_again,
    measured_again,
    rebatched,
)
from kernel_streamed import MOST_ELEMENTS, PARTS, Example, Sizes, listed_calls  # type: ignore[import-not-found]
from torch import Tensor, nn
from torch.nn import functional as F

# In octaves: how far the nearest measured kernel of a kind may be. The trees of held-out kernels are off by 5 % within
# 1.5 octaves and by 17 % beyond 3.
NEAR = 1.5
AGAIN_S = 12e-6  # shorter products were timed with the host's part: 5 to 6 % at 8 µs, less than 3 % beyond this
SHORT_S = 20e-6  # of streamed kernels that are measured again
MOST_CONVOLUTIONS = 4000  # of each part of the list
NOT_STREAMED = ("aten::convolution", "aten::mm", "aten::addmm", "aten::bmm", "aten::_scaled_dot", "aten::_cudnn_rnn")
LONG_S = 20e-3  # what a call may take by today's table; the device has eight minutes


class ModelSizes(Sizes):  # type: ignore[misc]
    """Draws sizes as models have them: images and volumes of common sides, tokens times widths, long signals."""

    def sides(self, dims: int) -> list[int]:
        if dims == 1:
            return [self.pick((49, 50, 64, 96, 100, 128, 197, 256, 336, 500, 512, 720, 1000, 1024, 1500, 2048, 3000,
                               4000, 8192, 16000, 24000, 32000, 48000, 65536, 160000))]  # fmt: skip
        if dims == 3:
            side = self.pick((4, 7, 8, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192))
            return self.pick(([side] * 3, [side, side, round(side * 1.25)], [self.pick((2, 4, 8, 16, 32)), side, side]))
        side = self.pick((1, 4, 7, 8, 12, 14, 15, 16, 20, 24, 28, 30, 32, 40, 48, 56, 60, 64, 80, 96, 112, 120, 128,
                          160, 192, 224, 240, 256, 320, 384, 416, 480, 512, 640, 720, 768, 1024))  # fmt: skip
        return [side, self.pick((side, side, side, round(side * 4 / 3), round(side * 16 / 9), round(side / 2) or 1))]

    def layer(self, rank: int, low: float = 12, high: float = 26) -> list[int]:
        for _ in range(40):
            batch = self.pick((1, 1, 1, 2, 2, 4, 4, 8, 8, 16, 32, 64))
            channels = self.pick((1, 1, 2, 3, 3, 8, 16, 24, 32, 32, 48, 64, 64, 80, 96, 128, 128, 144, 192, 256, 256,
                                  320, 384, 512, 512, 640, 768, 1024, 1280, 2048))  # fmt: skip
            shape = [batch, channels, *(self.sides(rank - 2) if rank > 2 else [])]
            if max(low, 11) <= log2(prod(shape)) <= max(min(high, log2(MOST_ELEMENTS)), 12):
                return shape
        return list(super().layer(rank, low, high))

    def split(self, count: int, low: float = 9, high: float = 25.5) -> list[int]:
        if count not in (2, 3) or self.chance(0.3):
            return list(super().split(count, max(low, min(13, high - 2)), high))
        for _ in range(20):
            tokens = self.pick((1, 16, 50, 64, 77, 100, 128, 196, 197, 256, 300, 400, 512, 577, 900, 1024, 1500, 2048,
                                4096, 8400, 16384, 32768, 100_000))  # fmt: skip
            width = self.pick((1, 2, 3, 4, 8, 10, 16, 32, 64, 80, 91, 128, 192, 256, 320, 384, 512, 768, 1000, 1024,
                               1536, 2048, 3072, 4096, 8192, 30522, 50257))  # fmt: skip
            batch = self.pick((1, 1, 2, 4, 8, 16, 32, 64))
            shape = [batch, tokens, width] if count == 3 else [batch * tokens, width]
            if low <= log2(prod(shape)) <= min(high, log2(MOST_ELEMENTS)):
                return shape
        return list(super().split(count, low, high))


def tensor_of(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.empty(list(shape), dtype=dtype, device="meta")


def picked(draw: Draw, ways: dict[str, Example]) -> Iterator[Example]:
    yield ways[draw.pick(list(ways))]


# Products.


def complex_numbers(draw: ModelSizes) -> Iterator[Example]:
    """Mixed channels of Fourier modes, rotations by complex numbers, their parts."""
    batch, made = draw.pick((1, 2, 4, 8, 16, 32)), draw.pick((8, 16, 20, 32, 48, 64, 128))
    channels, dims = draw.pick((made, made, 1, 3, 32)), draw.pick((1, 2, 2, 2, 3))
    modes = [draw.pick((8, 12, 16, 20, 24, 32, 64)) for _ in range(dims)]
    letters = "xyz"[:dims]
    spectrum = tensor_of([batch, channels, *modes], torch.complex64)
    weight = tensor_of([channels, made, *modes], torch.complex64)
    blocks = draw.pick((4, 8, 16))
    bands = tensor_of([batch * draw.pick((49, 196, 720, 4096)), blocks, made], torch.complex64)
    mixing = tensor_of([blocks, made, made], torch.complex64)
    left = tensor_of([batch, *draw.pick(([64, 64], [128, 16], [16, 512], [256, 256], [1, 64]))], torch.complex64)
    right = tensor_of([batch, left.shape[2], draw.pick((1, 16, 64, 256))], torch.complex64)
    tokens, heads, width = draw.pick((128, 512, 2048, 4096)), draw.pick((8, 16, 32)), draw.pick((64, 96, 128))
    query = draw.tensor([draw.pick((1, 2, 8)), tokens, heads, width])
    angles = tensor_of([tokens, 1, width // 2], torch.complex64)
    flat = tensor_of([batch, *draw.split(2, 10, 19)], torch.complex64)
    real = tensor_of([*flat.shape, 2], torch.float32)
    is_trained = draw.chance(0.4)

    def rotate(x: Tensor, turned: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turned).flatten(3).type_as(x)

    ways = {
        "modes": Example(lambda x, w: torch.einsum(f"bi{letters},io{letters}->bo{letters}", x, w), [spectrum, weight],
                         is_trained),
        "blocks": Example(lambda x, w: torch.einsum("nbi,bio->nbo", x, w), [bands, mixing], is_trained),
        "product": Example(torch.matmul, [left, right], is_trained),
        "linear": Example(torch.matmul, [left, right[0]], is_trained),
        "rotate": Example(rotate, [query, angles], is_trained),
        "polar": Example(torch.polar, [real[..., 0], real[..., 1]], is_trained),
        "complex": Example(torch.complex, [real[..., 0], real[..., 1]], is_trained),
        "angle": Example(torch.angle, [flat], is_trained),
        "abs": Example(torch.abs, [flat], is_trained),
        "times": Example(lambda x, y: x * y[:1], [flat, flat], is_trained),
        "scaled": Example(lambda x, y: x * y[..., 0], [flat, real], is_trained),
        "sum": Example(lambda x: x.sum(-1), [flat], is_trained),
        "conjugate": Example(lambda x, y: (x.conj() * y).resolve_conj(), [flat, flat]),
        "parts": Example(lambda x: torch.cat([x.real, x.imag], -1), [flat], is_trained),
        "exp": Example(torch.exp, [flat]),
        "into": Example(lambda x, y: x.clone().copy_(y), [flat, flat]),
        "zeros": Example(torch.zeros_like, [flat]),
        "turned": Example(lambda x: x.transpose(-1, -2).contiguous(), [flat]),
        "joined": Example(lambda x, y: torch.cat([x, y], 1), [flat, flat]),
    }  # fmt: skip
    yield from picked(draw, ways | {"modes ": ways["modes"], "blocks ": ways["blocks"], "product ": ways["product"]})


EINSUMS = (
    "bhid,bhjd->bhij", "bhij,bhjd->bhid", "bnd,bmd->bnm", "bchw,bcvu->bhwvu", "btc,cd->btd", "bijc,bikc->bjkc",
    "bikc,bjkc->bijc", "nctv,vw->nctw", "bhwc,hkc->bhwk", "bij,bij->b", "bdn,bde->bne", "blhd,bshd->bhls", "bld,d->bl",
    "bhls,bshd->blhd", "bqc,bchw->bqhw", "bqnc,bnchw->bqnhw", "btnd,nde->btne", "bsid,bsjd->bijd", "bcht,ch->bct",
    "bgrd,bgkd->bgrk", "ecd,edf->ecf", "sec,sd->ecd", "bkc,bcn->bkn", "bldn,bln->bld", "bct,ck->bkt",
)  # fmt: skip


def einsum(draw: ModelSizes) -> Iterator[Example]:
    """Sums of products in the forms of attention, masks, graphs, experts, pair representations and state spaces."""
    form = draw.pick(EINSUMS)
    left, _, right = form.partition("->")[0].partition(",")
    sizes = {letter: draw.pick((16, 24, 32, 49, 64, 64, 100, 128, 196, 256, 300, 384, 512, 1024)) for letter in form}
    sizes |= {"b": draw.pick((1, 1, 2, 4, 8, 16)), "v": draw.pick((17, 25, 32, 64)), "g": draw.pick((2, 8, 16)),
              "h": draw.pick((4, 8, 12, 16, 32, 64)), "w": draw.pick((25, 32, 64)),
              "e": draw.pick((4, 8, 64))}  # fmt: skip
    shapes = [[sizes[letter] for letter in part] for part in (left, right)]
    if max(prod(shapes[0]), prod(shapes[1]), prod(sizes[one] for one in form.partition("->")[2])) > MOST_ELEMENTS / 4:
        return
    dtype = draw.dtype()
    yield Example(lambda x, y: torch.einsum(form, x, y), [draw.tensor(shape, dtype, last=False) for shape in shapes],
                  draw.chance(0.4))  # fmt: skip


def products(draw: ModelSizes) -> Iterator[Example]:
    """Added batches of products, many tiny matrices, bilinear forms, vectors."""
    dtype, is_trained = draw.dtype(), draw.chance(0.35)
    count = draw.pick((1, 2, 8, 12, 16, 32, 64, 96, 128, 256))
    rows, depth = draw.pick((1, 49, 64, 77, 128, 197, 256, 512, 1024, 2048)), draw.pick((32, 64, 64, 80, 128, 512))
    columns = draw.pick((rows, rows, 64, 256))
    if count * rows * columns > MOST_ELEMENTS:
        return
    many, small, other = draw.size(8, 21, 1), draw.pick((2, 3, 3, 4, 4, 6, 8, 16)), draw.pick((1, 3, 4, 16, 64))
    features = draw.pick((16, 64, 128, 256, 512, 768))
    made = draw.pick((1, 10, 64, features))

    def batch(*shape: int) -> Tensor:
        return draw.tensor(shape, dtype, last=False)

    few = min(many, MOST_ELEMENTS // (small * max(small, other)))
    keys = batch(count, columns, depth)
    ways = {
        "added": Example(lambda a, q, k: torch.baddbmm(a, q, k.transpose(1, 2)),
                         [batch(*draw.pick(([count, rows, columns], [1, rows, columns], [count, 1, columns]))),
                          batch(count, rows, depth), keys], is_trained),
        "scaled": Example(lambda a, q, k: torch.baddbmm(a, q, k.transpose(1, 2), beta=0, alpha=0.125),
                          [batch(count, rows, columns), batch(count, rows, depth), keys]),
        "tiny": Example(torch.matmul, [batch(few, small, small), batch(few, small, other)], is_trained),
        "tiny turned": Example(lambda x, y: x @ y.transpose(1, 2),
                               [batch(few, small, small), batch(few, other, small)]),
        "moved": Example(lambda r, x: torch.matmul(r[:, None], x[..., None]).squeeze(-1),
                         [batch(count, 3, 3), batch(count, min(few, 4096), 3)]),
        "bilinear": Example(F.bilinear, [batch(rows, features), batch(rows, features),
                                         batch(min(made, 64), features, features)], is_trained and features < 200),
        "vector": Example(torch.matmul, [batch(count, rows, depth), batch(depth)], is_trained),
        "summed": Example(torch.addbmm, [batch(rows, columns), batch(count, rows, depth),
                                         batch(count, depth, columns)]),
        "outer": Example(torch.addr, [batch(rows, columns), batch(rows), batch(columns)]),
        "rows": Example(lambda x, y: (x * y).sum(-1), [batch(count, rows, depth), batch(count, rows, depth)],
                        is_trained),
        "gram": Example(lambda x: x @ x.transpose(1, 2), [batch(count, depth, rows)], is_trained),
        "broadcast": Example(torch.matmul, [batch(rows, depth), batch(count, depth, columns)], is_trained),
        "double": Example(torch.matmul, [tensor_of([count, 64, depth], torch.float64),
                                         tensor_of([count, depth, 64], torch.float64)]),
    }  # fmt: skip
    yield from picked(draw, ways | {"added ": ways["added"], "tiny ": ways["tiny"]})


# Transforms, windows and scans.


def spectra(draw: ModelSizes) -> Iterator[Example]:
    """Fourier transforms of signals, images and volumes along any dimensions, short-time transforms and back."""
    dims = draw.pick((1, 1, 2, 2, 2, 3))
    shape = draw.layer(dims + 2, 12, 24)
    data = tensor_of(shape, torch.float32)
    along = tuple(range(-dims, 0)) if draw.chance(0.8) else tuple(range(1, dims + 1))
    half = [*shape[:-1], shape[-1] // 2 + 1]
    numbers, whole = tensor_of(half, torch.complex64), tensor_of(shape, torch.complex64)
    if min(shape[2:]) < 2:
        return
    norm = draw.pick((None, "ortho", "ortho"))
    length = draw.pick((256, 400, 512, 640, 1024, 2048))
    waves = tensor_of([draw.pick((1, 2, 4, 8, 16)), draw.pick((16000, 44100, 65536, 160000, 441000))], torch.float32)
    frames = tensor_of([waves.shape[0], length // 2 + 1, waves.shape[1] * 4 // length], torch.complex64)
    window, is_trained = tensor_of([length], torch.float32), draw.chance(0.35)
    ways = {
        "real": Example(lambda x: torch.fft.rfftn(x, dim=along, norm=norm), [data], is_trained),
        "back": Example(lambda x: torch.fft.irfftn(x, s=shape[-dims:], dim=tuple(range(-dims, 0)), norm=norm),
                        [numbers], is_trained),
        "complex": Example(lambda x: torch.fft.fftn(x, dim=along, norm=norm), [whole], is_trained),
        "inverse": Example(lambda x: torch.fft.ifftn(x, dim=along, norm=norm), [whole]),
        "of real": Example(lambda x: torch.fft.fftn(x, dim=along, norm=norm).real, [data]),
        "shifted": Example(lambda x: torch.fft.fftshift(x, along), [whole]),
        "short": Example(lambda x, w: torch.stft(x, length, length // 4, window=w, return_complex=True),
                         [waves, window], is_trained),
        "long": Example(lambda x, w: torch.istft(x, length, length // 4, window=w), [frames, window]),
        "frames": Example(lambda x, w: x.unfold(-1, length, length // 4) * w, [waves, window], is_trained),
        "power": Example(lambda x: x.real**2 + x.imag**2, [whole], is_trained),
        "magnitude": Example(lambda x: x.abs().pow(2), [frames], is_trained),
        "convolved": Example(lambda x, k: torch.fft.irfft(torch.fft.rfft(x, 2 * x.shape[-1]) *
                                                          torch.fft.rfft(k, 2 * x.shape[-1])),
                             [data.flatten(2), tensor_of([shape[1], prod(shape[2:])], torch.float32)], is_trained),
    }  # fmt: skip
    yield from picked(draw, ways | {f"{name} ": ways[name] for name in ("real", "back", "complex", "short")})


def scans(draw: ModelSizes) -> Iterator[Example]:
    """Sums and extrema up to each element, along any dimension and of several types."""
    data = draw.tensor(draw.split(3, 12, 25) if draw.chance(0.6) else draw.layer(draw.pick((3, 4))), last=False)
    dim = draw.random.randrange(data.dim())
    whole = tensor_of(data.shape, draw.pick((torch.int64, torch.bool, torch.int32)))
    ways = {
        "sum": Example(lambda x: x.cumsum(dim), [data], draw.chance(0.4)),
        "count": Example(lambda x: x.cumsum(dim), [whole]),
        "max": Example(lambda x: x.cummax(dim), [data], draw.chance(0.3)),
        "min": Example(lambda x: x.cummin(dim), [data]),
        "product": Example(lambda x: x.cumprod(dim), [data]),
        "logarithm": Example(lambda x: x.logcumsumexp(dim), [data], draw.chance(0.3)),
        "from the end": Example(lambda x: x.flip(dim).cumsum(dim).flip(dim), [data]),
        "steps": Example(lambda x: torch.diff(x, dim=dim), [data], draw.chance(0.3)),
        "segments": Example(lambda x: (x.cumsum(-1)[..., :, None] - x.cumsum(-1)[..., None, :]).tril(),
                            [draw.tensor([draw.pick((1, 4, 16)), draw.pick((8, 24)), draw.pick((8, 32)), 64])]),
    }  # fmt: skip
    yield from picked(draw, ways | {"sum ": ways["sum"], "count ": ways["count"]})


# Resampling.


def resized(draw: ModelSizes) -> Iterator[Example]:
    """Between sizes of all modes and ranks, by factors that are not whole too."""
    dims = draw.pick((1, 2, 2, 2, 2, 3))
    modes = {1: ("nearest", "nearest-exact", "linear"), 3: ("nearest", "nearest-exact", "trilinear"),
             2: ("bilinear", "bilinear", "bilinear", "bicubic", "bicubic", "nearest", "nearest-exact")}  # fmt: skip
    mode = draw.pick(modes[dims])
    shape, out = draw.layer(dims + 2, 12, 25), draw.sides(dims)
    if draw.chance(0.6):
        times = draw.pick((2, 2, 2, 4, 4, 8, 0.5, 0.25, 3, 1.5))
        out = [max(round(side * times), 1) for side in shape[2:]]
    if mode == "bicubic" and draw.chance(0.4):  # embeddings of positions
        side, wide = draw.pick((14, 16, 24, 37)), draw.pick((14, 16, 20, 28, 32, 37, 40, 60, 64))
        shape, out = [1, draw.pick((192, 384, 768, 1024)), side, side], [wide, draw.pick((wide, wide * 4 // 3))]
    if prod(shape[:2]) * prod(out) > MOST_ELEMENTS:
        return
    more: dict[str, Any] = {} if "nearest" in mode else {"align_corners": draw.chance(0.4)}
    if mode in ("bilinear", "bicubic") and draw.chance(0.2):
        more = {"align_corners": False, "antialias": True}
    factors = [size / side for size, side in zip(out, shape[2:], strict=True)] if draw.chance(0.3) else None
    given = {"scale_factor": factors} if factors else {"size": out}
    yield Example(lambda x: F.interpolate(x, mode=mode, **given, **more), [draw.tensor(shape)], draw.chance(0.3))


def sampled(draw: ModelSizes) -> Iterator[Example]:
    """Images and volumes at other places: warped as a whole, or at a few points of each query."""
    dims = draw.pick((2, 2, 3, 3))
    shape = draw.layer(dims + 2, 12, 25)
    out = draw.pick((shape[2:], shape[2:], [max(side // 2, 1) for side in shape[2:]]))
    if draw.chance(0.3):  # deformable attention, ray marching
        points = [draw.pick((100, 300, 900, 4096, 8400, 65536)), draw.pick((1, 4, 8, 16, 64))]
        out = points if dims == 2 else [1, *points]
    if shape[0] * shape[1] * prod(out) > MOST_ELEMENTS / 2 or shape[0] * prod(out) * dims > MOST_ELEMENTS / 2:
        return
    data = draw.tensor(shape, draw.pick((torch.float32, torch.float32, torch.float16, torch.bfloat16)))
    grid = draw.tensor([shape[0], *out, dims], data.dtype, last=False)
    modes = ("bilinear", "bilinear", "bilinear", "nearest", *(("bicubic",) if dims == 2 else ()))
    mode, padding = draw.pick(modes), draw.pick(("zeros", "zeros", "border", "reflection"))
    corners = draw.chance(0.4)
    yield Example(lambda x, g: F.grid_sample(x, g, mode, padding, corners), [data, grid], draw.chance(0.35))


# Tables and places.


def bags(draw: ModelSizes) -> Iterator[Example]:
    """Rows of tables summed up by bag, as recommenders do, and tables of words."""
    rows, width = draw.pick((100, 1000, 10_000, 30_000, 100_000, 1_000_000)), draw.pick((4, 8, 16, 32, 64, 128, 256))
    count, wide = draw.pick((64, 256, 1024, 2048, 4096, 16384, 65536)), draw.pick((1, 1, 2, 5, 10, 20, 50, 100))
    if rows * width > MOST_ELEMENTS or count * wide > 1 << 21:
        return
    table, places = draw.tensor([rows, width]), tensor_of([count * wide], torch.int64)
    starts = tensor_of([count], torch.int64)
    mode, is_trained = draw.pick(("sum", "sum", "mean", "mean", "max")), draw.chance(0.45)
    weights = tensor_of([count * wide], table.dtype)
    words, pages = draw.pick((1000, 30_522, 50_257, 128_256)), draw.pick((64, 256, 768, 1024, 4096))
    table_of_words = draw.tensor([words, pages])
    text = tensor_of([draw.pick((1, 8, 32)), draw.pick((1, 128, 512, 2048))], torch.int64)
    ways = {
        "bag": Example(lambda t, i, o: F.embedding_bag(i, t, o, mode=mode), [table, places, starts], is_trained),
        "rows": Example(lambda t, i: F.embedding_bag(i, t, mode=mode), [table, places.view(count, wide)], is_trained),
        "weighted": Example(lambda t, i, o, w: F.embedding_bag(i, t, o, mode="sum", per_sample_weights=w),
                            [table, places, starts, weights], is_trained),
        "words": Example(lambda t, i: F.embedding(i, t, padding_idx=0), [table_of_words, text], is_trained),
        "table": Example(lambda t, i: F.embedding(i, t), [table, places.view(count, wide)], is_trained),
        "one hot": Example(lambda i: F.one_hot(i, 100).float(), [text]),
    }  # fmt: skip
    yield from picked(draw, ways | {"bag ": ways["bag"], "rows ": ways["rows"]})


def places(draw: ModelSizes) -> Iterator[Example]:
    """Edges of graphs, neighbours of points, caches, tables of relative positions, masks."""
    nodes, width = draw.pick((1000, 2708, 10_000, 50_000, 170_000)), draw.pick((1, 3, 8, 16, 32, 64, 128, 256))
    edges = draw.pick((1, 2, 5, 10, 20)) * nodes
    while edges * width > MOST_ELEMENTS / 2:
        edges //= 2
    dtype = draw.pick((torch.float32, torch.float32, torch.bfloat16, torch.float16))
    nodes_of, values = draw.tensor([nodes, width], dtype), draw.tensor([edges, width], dtype)
    to, line = tensor_of([edges], torch.int64), tensor_of([edges, 1], torch.int64)
    batch, points, few, wide = (
        draw.pick((1, 4, 8, 16)),
        draw.pick((512, 1024, 4096, 16384)),
        draw.pick((16, 32, 64)),
        draw.pick((3, 16, 64, 128)),
    )
    if batch * points * few * wide > MOST_ELEMENTS:
        points = 512
    cloud, near = draw.tensor([batch, points, wide], dtype), tensor_of([batch, points, few], torch.int64)
    number = tensor_of([batch, 1, 1], torch.int64)
    heads, window = draw.pick((3, 6, 12, 24)), draw.pick((49, 64, 144, 197))
    table, relative = draw.tensor([(2 * 12 - 1) ** 2, heads], dtype), tensor_of([window * window], torch.int64)
    slots, now = draw.pick((128, 1024, 2048, 8192)), draw.pick((1, 1, 128))
    cache = draw.tensor([batch, heads, slots, 64], dtype, last=False)
    new, at = draw.tensor([batch, heads, now, 64], dtype, last=False), tensor_of([now], torch.int64)
    tokens = draw.tensor([batch, points, wide * 4], dtype)
    kept = tensor_of([batch, points // 4], torch.int64)
    mask = tensor_of(tokens.shape, torch.bool)
    is_trained = draw.chance(0.35)
    reduce = draw.pick(("sum", "mean", "amax", "amin", "prod"))
    ways = {
        "sources": Example(lambda x, i: x[i], [nodes_of, to], is_trained),
        "selected": Example(lambda x, i: x.index_select(0, i), [nodes_of, to], is_trained),
        "messages": Example(lambda x, i, v: x.index_add(0, i, v), [nodes_of, to, values], is_trained),
        "scattered": Example(lambda x, i, v: x.scatter_add(0, i.expand_as(v), v), [nodes_of, line, values], is_trained),
        "reduced": Example(lambda x, i, v: x.scatter_reduce(0, i.expand_as(v), v, reduce), [nodes_of, line, values],
                           is_trained),
        "extremes": Example(lambda x, i, v: x.index_reduce(0, i, v, draw.pick(("amax", "mean"))),
                            [nodes_of, to, values]),
        "neighbours": Example(lambda x, b, i: x[b, i], [cloud, number, near], is_trained),
        "gathered": Example(lambda x, i: x.gather(1, i.flatten(1)[..., None].expand(-1, -1, x.shape[2])), [cloud, near],
                            is_trained),
        "relative": Example(lambda t, i: t[i].view(window, window, -1).permute(2, 0, 1).contiguous(), [table, relative],
                            is_trained),
        "cached": Example(lambda c, i, x: c.index_copy(2, i, x), [cache, at, new]),
        "cached here": Example(lambda c, i, x: c.index_copy_(2, i, x), [cache, at, new]),
        "part": Example(lambda c, x: c[:, :, : x.shape[2]].copy_(x), [cache, new]),
        "kept": Example(lambda x, i: x.gather(1, i[..., None].expand(-1, -1, x.shape[2])), [tokens, kept], is_trained),
        "restored": Example(lambda x, i, y: x.scatter(1, i[..., None].expand(-1, -1, x.shape[2]), y),
                            [tokens, kept, tokens[:, : points // 4]], is_trained),
        "filled": Example(lambda x, i: x.index_fill(1, i, 0.0), [tokens, kept[0]]),
        "along": Example(lambda x, i: torch.take_along_dim(x, i[..., None], 1), [tokens, kept]),
        "taken": Example(lambda x, i: torch.take(x, i), [cloud, near]),
        "masked": Example(lambda x, m, y: x.masked_scatter(m, y), [tokens, mask, tokens]),
        "chosen": Example(lambda x, m, y: torch.where(m, x, y), [tokens, mask, tokens], is_trained),
        "hidden": Example(lambda x, m: x.masked_fill(m, -1e4), [tokens, mask], is_trained),
        "second": Example(lambda x, i: x[:, i], [tokens, kept[0]], is_trained),
        "last": Example(lambda x, i: x[..., i], [tokens, tensor_of([wide], torch.int64)], is_trained),
        "searched": Example(torch.searchsorted, [tensor_of([batch, slots], torch.float32),
                                                 tensor_of([batch, slots], torch.float32)]),
        "in": Example(torch.isin, [to, tensor_of([64], torch.int64)]),
    }  # fmt: skip
    yield from picked(draw, ways)


def ordered(draw: ModelSizes) -> Iterator[Example]:
    """Anchors of detectors, experts of tokens, samples of vocabularies, points by distance."""
    rows, columns = draw.split(2, 10, 24)
    data = draw.tensor([rows, columns], draw.pick((torch.float32, torch.float32, torch.bfloat16, torch.float16)))
    boxes = draw.tensor([draw.pick((1, 2, 8, 16)), draw.pick((8400, 20_000, 75_000, 163_206, 268_569))], torch.float32)
    experts = draw.tensor([draw.pick((64, 512, 4096, 16384)), draw.pick((8, 16, 64, 128, 256))])
    words = draw.tensor([draw.pick((1, 8, 32)), draw.pick((32_000, 50_257, 128_256, 151_936))])
    cloud = draw.tensor(
        [draw.pick((1, 4, 8)), draw.pick((512, 1024, 2048)), draw.pick((512, 1024, 2048))], torch.float32
    )
    many, chosen = draw.pick((100, 300, 1000)), draw.pick((1, 2, 4, 8))
    near = draw.pick((3, 8, 16, 20, 32))
    whole = tensor_of([draw.size(10, 21, 1)], torch.int64)
    ways = {
        "boxes": Example(lambda x: x.topk(many, 1), [boxes]),
        "experts": Example(lambda x: x.topk(chosen, 1), [experts]),
        "words": Example(lambda x: x.topk(50, 1), [words]), "sorted words": Example(lambda x: x.sort(1, True), [words]),
        "most": Example(lambda x: x.argmax(1), [words]), "near": Example(lambda x: x.topk(near, -1, False), [cloud]),
        "sorted": Example(lambda x: x.sort(-1), [data]), "boxes sorted": Example(lambda x: x.argsort(-1), [boxes]),
        "integers": Example(lambda x: x.sort(), [whole]), "stable": Example(lambda x: x.argsort(stable=True), [whole]),
        "median": Example(lambda x: x.median(-1), [data]), "kth": Example(lambda x: x.kthvalue(1, -1), [data]),
        "sampled": Example(lambda x: torch.multinomial(x, 1), [words.float()]),
        "gumbel": Example(lambda x: F.gumbel_softmax(x, hard=True), [data], draw.chance(0.4)),
        "extremes": Example(lambda x: torch.aminmax(x, dim=-1), [data]),
        "nearest": Example(lambda x: x.min(-1), [cloud], draw.chance(0.3)),
        "largest": Example(lambda x: x.max(-1), [tensor_of([*boxes.shape, draw.pick((20, 80, 91))], boxes.dtype)]),
    }  # fmt: skip
    yield from picked(draw, ways)


# Losses and functions of elements.


def losses(draw: ModelSizes) -> Iterator[Example]:
    """All losses of torch with their gradients."""
    rows, width = draw.split(2, 11, 23)
    dtype = draw.pick((torch.float32, torch.float32, torch.float32, torch.bfloat16))
    x, y, z = (tensor_of([rows, width], dtype) for _ in range(3))
    image = tensor_of(draw.layer(4, 14, 24), dtype)
    labels, signs = tensor_of([rows], torch.int64), tensor_of([rows], dtype)
    many = tensor_of([rows, width], torch.int64)
    volume = tensor_of([2, draw.pick((2, 4, 14)), *draw.sides(3)], dtype)
    if volume.numel() > MOST_ELEMENTS:
        volume = tensor_of([2, 4, 64, 64, 64], dtype)
    ways: tuple[tuple[Callable[..., Any], list[Tensor]], ...] = (
        (lambda a, b, t: F.cosine_embedding_loss(a, b, t), [x, y, signs]),
        (lambda a, b, t: F.margin_ranking_loss(a, b, t), [x, y, z]), (F.triplet_margin_loss, [x, y, z]),
        (F.multi_margin_loss, [x, labels]), (F.multilabel_margin_loss, [x, many]), (F.soft_margin_loss, [x, y]),
        (F.multilabel_soft_margin_loss, [x, y]), (F.poisson_nll_loss, [x, y]), (F.gaussian_nll_loss, [x, y, z]),
        (F.hinge_embedding_loss, [x, y]), (lambda a, b: F.kl_div(a.log_softmax(-1), b.softmax(-1)), [x, y]),
        (lambda a, b: F.cross_entropy(a, b), [x, y]), (lambda a, b: F.cross_entropy(a, b, ignore_index=0), [x, labels]),
        (lambda a, b: F.binary_cross_entropy_with_logits(a, b, pos_weight=b[0]), [x, y]),
        (lambda a, b: F.mse_loss(a, b, reduction="none").mean(-1), [x, y]), (F.l1_loss, [image, image]),
        (lambda a, b: F.smooth_l1_loss(a, b, beta=0.1), [image, image]), (F.mse_loss, [image, image]),
        (lambda a, b: F.cross_entropy(a, b), [volume, tensor_of([2, *volume.shape[2:]], torch.int64)]),
        (lambda a, b: 1 - 2 * (a.sigmoid() * b).sum((2, 3)) / (a.sigmoid() + b).sum((2, 3)), [image, image]),
        (lambda a, b: (a.sigmoid() - b).abs().pow(2) * F.binary_cross_entropy_with_logits(a, b, reduction="none"),
         [image, image]),
        (lambda a, b: F.cosine_similarity(a, b, dim=1), [image, image]), (F.pairwise_distance, [x, y]),
        (lambda a, b: (F.normalize(a, dim=-1) * F.normalize(b, dim=-1)).sum(-1), [x, y]),
        (lambda a: (a[:, :, 1:] - a[:, :, :-1]).abs().mean(), [image]),
        (lambda a: a.log_softmax(1), [image]),
    )  # fmt: skip
    function, tensors = draw.pick(ways)
    yield Example(function, tensors, draw.chance(0.7))


MORE_UNARY: tuple[Callable[[Tensor], Any], ...] = (
    torch.ceil, torch.trunc, torch.frac, torch.tan, torch.asin, torch.acos, torch.sinh, torch.cosh, torch.asinh,
    torch.atanh, torch.exp2, torch.log10, torch.erfc, torch.erfinv, torch.lgamma, torch.digamma, torch.logit,
    torch.sinc, torch.isinf, torch.isfinite, torch.logical_not, torch.signbit, torch.deg2rad, F.hardshrink,
    lambda x: F.threshold(x, 0.1, 0.0), lambda x: F.rrelu(x, training=True), F.softmin, F.softsign,
    lambda x: F.glu(x, -1), lambda x: F.glu(x, 0), lambda x: x % 2, lambda x: x // 2, lambda x: x.long(),
    lambda x: x.double(), lambda x: x.bool(), lambda x: x.int(), lambda x: (x > 0) & (x < 1),
    lambda x: (x > 0) | (x < 1), lambda x: ~(x > 0), lambda x: (x > 0).float(), lambda x: x.float(),
    lambda x: x.to(torch.bfloat16),
    lambda x: x.clamp(min=-1), lambda x: x.clamp(max=1), lambda x: x.pow(-0.5), lambda x: x.pow(4), lambda x: 2.0**x,
    lambda x: x.sigmoid_(), lambda x: x.tanh_(), lambda x: x.exp_(), lambda x: x.neg_(), lambda x: x.sub_(1),
    lambda x: x.div_(2), lambda x: x.clamp_(0, 1), lambda x: F.relu6(x, True), lambda x: F.hardswish(x, True),
    lambda x: F.mish(x), lambda x: x * F.softplus(x).tanh(), lambda x: x.sgn(), lambda x: x.expm1(),
    lambda x: torch.ones_like(x), lambda x: x.new_ones(x.shape), lambda x: x.new_full(x.shape, 3.0),
    lambda x: torch.randint_like(x, 10), lambda x: x.softmax(1), lambda x: x.all(), lambda x: (x > 0).all(-1),
    lambda x: (x > 0).sum(-1), lambda x: x.count_nonzero(), lambda x: x.nansum(-1), lambda x: torch.std_mean(x, -1),
    lambda x: x.abs().max(), lambda x: x.norm(1, -1), lambda x: x.norm(float("inf")),
    lambda x: x.softmax(-1, torch.float32),
)  # fmt: skip
MORE_BINARY: tuple[Callable[[Tensor, Tensor], Any], ...] = (
    torch.remainder, torch.floor_divide, torch.copysign, torch.hypot, torch.logaddexp, torch.xlogy, torch.heaviside,
    torch.ne, torch.lt, torch.le, torch.ge, torch.logical_or, torch.logical_xor, torch.fmax, torch.fmin,
    lambda x, y: x.sub_(y), lambda x, y: x.div_(y), lambda x, y: x.lerp(y, 0.5), lambda x, y: torch.lerp(x, y, y),
    lambda x, y: x.addcmul_(y, y, value=0.5), lambda x, y: torch.clamp(x, y, y + 1), lambda x, y: x.mul(y).add_(x),
    lambda x, y: x + 0.5 * y, lambda x, y: torch.sub(x, y, alpha=2), lambda x, y: torch.where(x > 0, y, 0.0),
    lambda x, y: torch.where(x > 0, 1.0, y), lambda x, y: x.copy_(y), lambda x, y: torch.rsub(x, y),
)  # fmt: skip
WHOLE_TYPES = (torch.int64, torch.int64, torch.int32, torch.bool, torch.uint8, torch.float64)


def functions(draw: ModelSizes) -> Iterator[Example]:
    """Functions of elements that the list of streamed ops does without, and other types than models compute in."""
    data = draw.tensor(draw.split(draw.pick((2, 3))) if draw.chance(0.5) else draw.layer(draw.pick((3, 4, 4, 5))))
    other = torch.empty_like(data) if draw.chance(0.5) else draw.tensor(
        [size if draw.chance(0.6) else 1 for size in data.shape], data.dtype, last=False)  # fmt: skip
    if draw.chance(0.2):
        dtype = draw.pick(WHOLE_TYPES)
        data, other = tensor_of(data.shape, dtype), tensor_of(other.shape, dtype)
        number = draw.pick((
            lambda x, y: x + y, lambda x, y: x * y, lambda x, y: x == y, lambda x, y: x - y, lambda x, y: x > y,
            lambda x, _: x + 1, lambda x, _: x.float(), lambda x, _: x.clone(), lambda x, _: x.sum(-1),
            lambda x, y: torch.where(x > y, x, y), lambda x, y: x & y, lambda x, _: x == 0,
            lambda x, _: x.to(torch.int64), lambda x, _: x.transpose(0, 1).contiguous(),
            lambda x, _: torch.cat([x, x], -1), lambda x, _: x.max(-1),
            lambda x, _: x.to(torch.bfloat16),
        ))  # fmt: skip
        yield Example(number, [data, other])
    elif draw.chance(0.65):
        yield Example(draw.pick(MORE_UNARY), [data], draw.chance(0.35))
    else:
        yield Example(draw.pick(MORE_BINARY), [data, other], draw.chance(0.3))


# Images, sets and layouts.


def windows(draw: ModelSizes) -> Iterator[Example]:
    """Pools of all kinds with wide and unequal windows, windows that are put back, moving averages."""
    dims = draw.pick((1, 2, 2, 2, 3))
    shape = draw.layer(dims + 2, 13, 25)
    wide = draw.pick((2, 3, 5, 7, 9, 13, 25))
    if min(shape[2:]) < wide + 1:
        return
    data, is_trained = draw.tensor(shape), draw.chance(0.35)
    first = [wide, *[1] * (dims - 1)] if draw.chance(0.3) else [wide] * dims
    pad = [size // 2 for size in first]
    step, (low, high) = draw.pick((1, 2, wide)), draw.pick(((F.max_pool1d, F.avg_pool1d),)) if dims == 1 else (
        (F.max_pool2d, F.avg_pool2d) if dims == 2 else (F.max_pool3d, F.avg_pool3d))  # fmt: skip
    pool: Any = draw.pick((low, high))
    half = [size // 2 for size in shape[2:]]

    def unpool(x: Tensor) -> Tensor:
        maximum: Any = F.max_pool2d if dims == 2 else F.max_pool3d
        back: Any = F.max_unpool2d if dims == 2 else F.max_unpool3d
        kept, where = maximum(x, 2, return_indices=True)
        return back(kept, where, 2, output_size=x.shape)

    ways = {
        "pool": Example(lambda x: pool(x, first, step, pad), [data], is_trained),
        "same": Example(lambda x: pool(x, first, 1, pad), [data], is_trained),
        "norm": Example(lambda x: F.lp_pool1d(x, 2, wide) if dims == 1 else F.lp_pool2d(x, 2, wide), [data]),
        "fractional": Example(lambda x: F.fractional_max_pool2d(x, 2, output_size=half), [data]),
        "back": Example(unpool, [data], is_trained),
        "response": Example(lambda x: F.local_response_norm(x, 5), [data], is_trained),
        "whole": Example(lambda x: x.mean(tuple(range(2, x.dim()))), [data], is_trained),
        "maximum": Example(lambda x: x.amax(tuple(range(2, x.dim()))), [data], is_trained),
        "few": Example(lambda x: getattr(F, f"adaptive_{'avg' if wide < 6 else 'max'}_pool{dims}d")(x, min(wide, 7)),
                       [data], is_trained),
        "mirrored": Example(lambda x: F.pad(x, [wide // 2] * (2 * dims), "reflect"), [data], is_trained),
        "circular": Example(lambda x: F.pad(x, [wide // 2] * (2 * dims), "circular"), [data]),
        "repeated": Example(lambda x: F.pad(x, [wide // 2] * (2 * dims), "replicate"), [data], is_trained),
        "zeros": Example(lambda x: F.pad(x, [wide // 2] * (2 * dims)), [data], is_trained),
        "columns": Example(lambda x: F.unfold(x, min(wide, 5), padding=2), [data], is_trained),
        "patches": Example(lambda x: x.unfold(2, wide, wide), [data], is_trained),
    }  # fmt: skip
    if prod(shape) * min(wide, 5) ** 2 > MOST_ELEMENTS or dims != 2:
        del ways["columns"]
    yield from picked(draw, ways)


def norms(draw: ModelSizes) -> Iterator[Example]:
    """One group, one group per channel, whole samples, statistics by hand, weights of spectral and weight norms."""
    shape = draw.layer(draw.pick((3, 3, 4, 4, 4, 5, 5)), 14, 26)
    data, is_trained = draw.tensor(shape), draw.chance(0.45)
    affine = [draw.tensor(shape[1:2], data.dtype) for _ in range(2)]
    kept = [tensor_of(shape[1:2], data.dtype) for _ in range(2)]
    count = draw.pick([size for size in (1, 1, 1, 2, 4, 8, 16, 32, 32, shape[1]) if shape[1] % size == 0])
    whole = list(shape[1:])
    weight = draw.tensor([draw.pick((64, 256, 512, 1024, 4096)), draw.pick((64, 576, 1024, 4096, 9216))])
    flat = draw.tensor([*draw.split(2, 12, 24)])
    ways = {
        "groups": Example(lambda x, w, b: F.group_norm(x, count, w, b), [data, *affine], is_trained),
        "instances": Example(lambda x, w, b: F.instance_norm(x, None, None, w, b), [data, *affine], is_trained),
        "plain instances": Example(lambda x: F.instance_norm(x), [data], is_trained),
        "batch": Example(lambda x, w, b, m, v: F.batch_norm(x, m.detach(), v.detach(), w, b, is_trained),
                         [data, *affine, *kept], is_trained),
        "samples": Example(lambda x: F.layer_norm(x, whole), [data], is_trained),
        "channels": Example(lambda x, w, b: F.layer_norm(x.movedim(1, -1), [shape[1]], w, b).movedim(-1, 1),
                            [data, *affine], is_trained),
        "by hand": Example(lambda x: (x - x.mean(1, True)) / (x.var(1, keepdim=True) + 1e-6).sqrt(), [data],
                           is_trained),
        "rms": Example(lambda x: x * x.float().pow(2).mean(-1, True).add(1e-6).rsqrt().to(x.dtype), [flat], is_trained),
        "unit": Example(lambda x: F.normalize(x, dim=1), [data], is_trained),
        "spectral": Example(lambda w, u: F.normalize(torch.mv(w.t(), u), dim=0), [weight, weight[:, 0].clone()]),
        "sums": Example(lambda x: x.sum((0, *range(2, x.dim()))), [data]),
        "response": Example(lambda x: x.norm(2, tuple(range(2, x.dim())), True), [data], is_trained),
        "standard": Example(lambda x: x.std((2, 3)) if x.dim() > 3 else x.std(2), [data], is_trained),
        "last softmax": Example(lambda x: x.flatten(2).softmax(-1), [data], is_trained),
        "channel softmax": Example(lambda x: x.softmax(1), [data], is_trained),
    }  # fmt: skip
    yield from picked(draw, ways | {"groups ": ways["groups"], "instances ": ways["instances"]})


def arranged(draw: ModelSizes) -> Iterator[Example]:
    """Windows of images, heads, pixels to channels, masks, many tensors joined, tensors that a model makes itself."""
    batch, channels, height, width = draw.layer(4, 13, 25)
    data = draw.tensor([batch, channels, height, width])
    size = draw.pick([part for part in (1, 2, 4, 7, 8, 14, 16) if height % part == 0 and width % part == 0])
    tokens, heads = draw.tensor(draw.split(3, 12, 24)), draw.pick((2, 3, 4, 6, 8, 12, 16))
    is_trained, length = draw.chance(0.3), draw.pick((64, 128, 512, 1024, 2048, 4096))
    parts = draw.pick((2, 3, 4, 8, 16, 32, 64))
    volume = draw.tensor(draw.layer(5, 13, 25))
    few = max(tokens.shape[2] // parts, 1)
    ways: dict[str, Example] = {
        "windows": Example(lambda x: x.view(batch, channels, height // size, size, width // size, size)
                           .permute(0, 2, 4, 3, 5, 1).contiguous(), [tensor_of(data.shape, data.dtype)], is_trained),
        "tokens": Example(lambda x: x.flatten(2).transpose(1, 2).contiguous(), [data], is_trained),
        "pixels": Example(lambda x: x.transpose(1, 2).contiguous(), [tokens], is_trained),
        "heads": Example(lambda x: x.view(*x.shape[:2], heads, -1).transpose(1, 2).contiguous()
                         if x.shape[2] % heads == 0 else x, [tokens], is_trained),
        "last": Example(lambda x: x.contiguous(memory_format=torch.channels_last), [data]),
        "volume last": Example(lambda x: x.contiguous(memory_format=torch.channels_last_3d), [volume]),
        "turned volume": Example(lambda x: x.permute(0, 2, 1, 3, 4).contiguous(), [volume], is_trained),
        "split": Example(lambda x: torch.cat(x.split(few, 2)[::-1], 2), [tokens], is_trained),
        "joined": Example(lambda *xs: torch.cat(xs, 1),
                          [draw.tensor([batch, max(channels // parts, 1), height, width], data.dtype, last=False)
                           for _ in range(parts)], is_trained),
        "stacked": Example(lambda *xs: torch.stack(xs, 1), [tensor_of(tokens.shape[:2], tokens.dtype)
                                                            for _ in range(parts)], is_trained),
        "mask": Example(lambda x: torch.full((length, length), float("-inf")).triu(1), [tokens]),
        "bool mask": Example(lambda x: torch.ones(length, length, dtype=torch.bool).tril(), [tokens]),
        "mesh": Example(lambda x: torch.stack(torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij"),
                                              -1).float(), [tokens]),
        "frequencies": Example(lambda x: torch.outer(torch.arange(length).float(), torch.linspace(0, 1, 64)).cos(),
                               [tokens]),
        "noise": Example(lambda x: torch.randn_like(x), [data]), "eye": Example(lambda x: torch.eye(length), [tokens]),
        "integers": Example(lambda x: torch.randint(0, 1000, (length, 64)), [tokens]),
        "shuffled": Example(lambda x: torch.randperm(length * 8), [tokens]),
        "repeated": Example(lambda x: x.repeat_interleave(2, 1), [tokens], is_trained),
        "expanded": Example(lambda x: x[:, None].expand(-1, heads, -1, -1).reshape(-1, *x.shape[1:]), [tokens],
                            is_trained),
        "rolled": Example(lambda x: x.roll((-size, -size), (2, 3)), [data], is_trained),
        "turned": Example(lambda x: x.rot90(1, (2, 3)), [data]), "mirrored": Example(lambda x: x.flip(3), [data]),
        "shuffle": Example(lambda x: F.pixel_unshuffle(x, size), [data], is_trained),
        "diagonal": Example(torch.diag_embed, [tensor_of([batch, min(length, 512)], data.dtype)]),
        "half": Example(lambda x: torch.cat([-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]], -1), [tokens],
                        is_trained),
        "every": Example(lambda x: x[:, :, ::2, 1::2].contiguous(), [data], is_trained),
        "quarters": Example(lambda x: torch.cat([x[:, :, ::2, ::2], x[:, :, 1::2, ::2], x[:, :, ::2, 1::2]], 1),
                            [draw.tensor([batch, channels, height // 2 * 2 or 2, width // 2 * 2 or 2], data.dtype)]),
        "summed": Example(lambda x: x.expand(8, *x.shape).clone(), [tokens[:1]], is_trained),
        "dropped": Example(lambda x: F.dropout(x, 0.1), [data], is_trained),
        "dropped paths": Example(lambda x: x * x.new_empty(x.shape[0], 1, 1).bernoulli_(0.9), [tokens], is_trained),
    }  # fmt: skip
    if height * width > 1 << 20 or height < 4 or width < 4:
        return
    yield from picked(draw, ways)


def parts_of_tensors(draw: ModelSizes) -> Iterator[Example]:
    """Functions of parts of a tensor, as gated layers split one, and of turned tensors: their kernels cannot load
    several elements at a time. Weight norms over any dimension."""
    if draw.chance(0.08):
        wide, deep = draw.pick((32, 64, 128, 256, 512, 768, 1024)), draw.pick((1, 16, 48, 64, 256, 512))
        taps = draw.pick((1, 3, 5, 7, 11, 16, 41, 128))
        dim, dtype = draw.pick((0, 2)), draw.dtype()
        sums = tensor_of((wide, 1, 1) if dim == 0 else (1, 1, taps), dtype)
        yield Example(
            lambda v, g: torch._weight_norm_interface(v, g, dim), [tensor_of((wide, deep, taps), dtype), sums]
        )
        return
    is_image = draw.chance(0.4)
    shape = draw.layer(4, 13, 25) if is_image else draw.split(3, 13, 25)
    dim, dtype = (1 if is_image else 2), draw.dtype()
    shape[dim] = max(shape[dim] // 8, 1) * 8
    first = round(shape[dim] * draw.pick((0.5, 0.5, 0.5, 0.25, 0.125, 0.75)))
    other = tensor_of([*shape[:dim], first, *shape[dim + 1 :]], dtype)
    weight, width = tensor_of([first], dtype), first

    def part(whole: Tensor, place: int = 0) -> Tensor:
        start = place if place + first <= shape[dim] else 0
        return whole.narrow(dim, start, first)

    def turned(whole: Tensor) -> Tensor:
        return part(whole).flatten(2).transpose(1, 2) if is_image else part(whole).transpose(0, 1)

    unary, binary = draw.pick(PART_FUNCTIONS), draw.pick((torch.add, torch.mul, torch.sub))
    ways: dict[str, Any] = {
        "unary": lambda x, y, w: unary(part(x, first)),
        "unary ": lambda x, y, w: unary(part(x)),
        "turned": lambda x, y, w: unary(turned(x)),
        "gate": lambda x, y, w: part(x) * part(x, first),
        "binary": lambda x, y, w: binary(part(x, first), y),
        "onto": lambda x, y, w: y.add_(part(x)),
        "norm": lambda x, y, w: F.layer_norm(turned(x) if is_image else part(x), [width], w, w),
        "softmax": lambda x, y, w: (turned(x) if is_image else part(x)).softmax(-1),
        "sum": lambda x, y, w: part(x).mean(-1),
        "type": lambda x, y, w: part(x).to(torch.float32 if dtype != torch.float32 else torch.bfloat16),
        "joined": lambda x, y, w: torch.cat([part(x), y], dim),
    }  # fmt: skip
    yield Example(ways[draw.pick(list(ways))], [tensor_of(shape, dtype), other, weight])


PART_FUNCTIONS = (F.gelu, F.gelu, F.silu, F.silu, torch.sigmoid, torch.sigmoid, torch.tanh, F.relu, torch.exp,
                  F.softplus, torch.neg, lambda x: x * 0.5, lambda x: x + 1.0, torch.clone,
                  lambda x: F.gelu(x, approximate="tanh"))  # fmt: skip


def slice_draw(count: int = 6000) -> list[dict[str, Any]]:
    draw = ModelSizes(13)
    return list(listed_calls(draw, [example for _ in range(count) for example in parts_of_tensors(draw)]))


def sets(draw: ModelSizes) -> Iterator[Example]:
    """Distances between points with their gradients, small linear systems."""
    batch, first, second = draw.pick((1, 2, 4, 8, 16)), *(draw.pick((64, 256, 1024, 2048, 4096)) for _ in range(2))
    wide = draw.pick((2, 3, 3, 16, 64, 128))
    if batch * first * second > MOST_ELEMENTS:
        return
    x, y = tensor_of([batch, first, wide], torch.float32), tensor_of([batch, second, wide], torch.float32)
    is_trained = draw.chance(0.4)
    small = draw.pick((2, 3, 4, 8, 16))
    matrices = tensor_of([draw.size(4, 16, 1), small, small], torch.float32)
    ways = {
        "cdist": Example(lambda a, b: torch.cdist(a, b), [x, y], is_trained),
        "manhattan": Example(lambda a, b: torch.cdist(a, b, 1.0), [x, y], is_trained and first * second < 1 << 21),
        "square": Example(lambda a, b: (a * a).sum(-1)[..., None] - 2 * a @ b.mT + (b * b).sum(-1)[:, None],
                          [x, y], is_trained),
        "pairs": Example(torch.pdist, [x[0]]),
        "differences": Example(lambda a, b: (a[:, :, None] - b[:, None]).norm(dim=-1), [x[:, :256], y[:, :512]],
                               is_trained),
        "inverse": Example(torch.linalg.inv, [matrices]), "determinant": Example(torch.linalg.det, [matrices]),
        "root": Example(torch.linalg.cholesky, [matrices]),
    }  # fmt: skip
    yield from picked(draw, ways)


NEW_PARTS: tuple[tuple[Callable[[Any], Iterator[Example]], int], ...] = (
    (complex_numbers, 330), (einsum, 280), (products, 380), (spectra, 330), (scans, 220), (resized, 700),
    (sampled, 400), (bags, 360), (places, 550), (ordered, 260), (losses, 330), (functions, 900), (windows, 480),
    (norms, 620), (arranged, 560), (sets, 110),
)  # fmt: skip
OLD_SHARE = 0.2  # of the functions of `kernel_streamed`, drawn again in sizes of models


# Optimizers.


class Parameters(nn.Module):
    """The parameters of a model, so that an optimizer has a step to take."""

    def __init__(self, shapes: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self.parts = nn.ParameterList(nn.Parameter(torch.empty(list(shape), device="meta")) for shape in shapes)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([part.sum() for part in self.parts]).sum() * x


OPTIMIZERS = (
    ("adamw", True), ("adam", True), ("sgd", True), ("adagrad", True), ("adamw", None), ("sgd", None),
    ("rmsprop", None), ("adagrad", None), ("radam", None), ("nadam", None), ("adamax", None), ("adadelta", None),
    ("asgd", None),
    ("rprop", None),
)  # fmt: skip


def optimizer_calls(draw: ModelSizes) -> list[dict[str, Any]]:
    """Steps of each optimizer over the parameters of small and large models."""
    collect: Any = import_module("collect")
    steps: Any = import_module("torchgauge.predict.steps")
    devices, kernels = (import_module(f"torchgauge.predict.{name}") for name in ("devices", "kernels"))
    optimizers: Any = import_module("torchgauge.predict.optimizers")
    candidates: Any = import_module("torchgauge.source").candidate_inputs
    failure: Any = import_module("torchgauge.errors").TorchgaugeError
    noted = collect.Noting.planner(steps)
    found: dict[str, dict[str, Any]] = {}
    try:
        for name, is_fused in OPTIMIZERS:
            for count, width in ((6, 64), (30, 256), (30, 1024), (120, 192), (120, 768), (200, 1024), (60, 2048)):
                shapes = [
                    draw.pick(([width, width], [width], [4 * width, width], [width], [1, width])) for _ in range(count)
                ]
                setting = steps.Setting(kernels.Library(devices.find_device("h200").chip), train=True,
                                        optimizer=optimizers.make_optimizer(name, fused=is_fused))  # fmt: skip
                model = Parameters(shapes)
                candidate = next(iter(candidates(model, inputs=(torch.empty((), device="meta"),))))
                try:
                    ops = steps.trace(model, candidate, setting).step_ops
                except failure as error:  # large fused steps cannot be traced without data
                    print(f"{name}: {str(error)[:100]}")
                    continue
                for call in collect.described(ops, noted):
                    if call["op"].startswith(("aten::_foreach", "aten::_fused")):
                        key = str([call["op"], call["tensors"], call["args"]])
                        found.setdefault(key, call | {"models": []})
    finally:
        steps.CudaPlanner = collect.Noting.original
    return list(found.values())


# Convolutions.


def gap_convolution(draw: Draw) -> ConvolutionLayer:
    """Of signals, images and volumes with wide filters, groups, dilation, few channels on one side, and transposed, as
    speech models, generators, vocoders, decoders of images and networks with wide filters have them."""
    pick = draw.pick
    dims = pick((1, 1, 1, 2, 2, 2, 2, 3))
    is_transposed = draw.chance(0.3)
    wide = pick((16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024))
    few = pick((1, 1, 2, 3, 3, 4, 8))
    channels, made = pick(((wide, wide), (wide, wide), (wide, max(wide // 2, 1)), (wide, 2 * wide), (few, wide),
                           (wide, few), (wide, few)))  # fmt: skip
    groups = 1
    if channels == made and not is_transposed and draw.chance(0.45):
        groups = pick([count for count in (2, 4, 8, 16, 32, channels, channels) if channels % count == 0])
    if dims == 1:
        image: list[int] = [pick((49, 100, 250, 499, 512, 749, 1024, 1500, 2000, 4000, 8192, 16000, 32000, 64000))]
        taps = pick((3, 5, 7, 10, 15, 16, 31, 31, 41, 63, 64, 127, 128, 128, 255))
        kernel, dilation = [taps], [pick((1, 1, 1, 2, 4, 8, 16, 64, 256)) if taps < 8 else 1]
    elif dims == 2:
        side = pick((7, 8, 14, 16, 28, 32, 56, 64, 96, 112, 128, 160, 224, 240, 256, 320, 384, 480, 512))
        image = [side, pick((side, side, round(side * 4 / 3)))]
        kernel = list(pick(((1, 1), (3, 3), (3, 3), (5, 5), (7, 7), (9, 9), (11, 11), (13, 13), (21, 21), (31, 31),
                            (1, 11), (11, 1), (21, 1), (1, 21), (5, 51), (3, 3))))  # fmt: skip
        kernel = [3, 3] if max(kernel) > 13 and groups not in (channels,) else kernel
        dilation = [pick((1, 1, 1, 2, 3, 4, 6, 12, 18))] * 2 if max(kernel) <= 7 else [1, 1]
    else:
        side = pick((8, 14, 16, 24, 28, 32, 48, 56, 64, 96, 112, 128))
        image = [pick((4, 8, 16, 32, side)), side, side]
        kernel = list(pick(((3, 3, 3), (3, 3, 3), (1, 1, 1), (1, 3, 3), (3, 1, 1), (5, 5, 5), (7, 7, 7), (1, 7, 7))))
        dilation = [pick((1, 1, 1, 2))] * 3
    if is_transposed:
        steps = pick((2, 2, 2, 4, 5, 8)) if dims == 1 else pick((1, 2, 2, 2, 4)) if dims == 2 else 2
        taps = pick((2 * steps, 2 * steps, steps, steps + 1, 3)) if steps > 1 else pick((3, 4))
        image = [min(side, 16000 // steps if dims == 1 else 256 // steps) for side in image]
        if draw.chance(0.15) and dims == 2:  # the first layer of a generator
            image, channels, taps, steps = [1, 1], pick((64, 100, 128, 512)), 4, 1
        pad = 0 if image == [1, 1] else max((taps - steps + 1) // 2, 0)
        more = max(steps - (taps - 2 * pad), 0) if steps > 1 else 0
        return ConvolutionLayer(tuple(image), channels, made, (taps,) * dims, (steps,) * dims, (pad,) * dims,
                                (1,) * dims, True, (min(more, steps - 1),) * dims, 1, draw.chance(0.5))  # fmt: skip
    steps = pick((1, 1, 1, 1, 2, 2)) if max(kernel) < 16 or dims > 1 else pick((1, 1, 1, 2, 4, 8, 160))
    padding = [apart * (taps - 1) // 2 for taps, apart in zip(kernel, dilation, strict=True)]
    padding = padding if draw.chance(0.85) else [0] * dims
    image = [max(side, apart * (taps - 1) + 1) for side, taps, apart in zip(image, kernel, dilation, strict=True)]
    return ConvolutionLayer(tuple(image), channels, made, tuple(kernel), (steps,) * dims, tuple(padding),
                            tuple(dilation), False, (0,) * dims, groups, draw.chance(0.5))  # fmt: skip


def short_attention(draw: Draw) -> Iterator[Drawn]:
    """Many short sequences with narrow heads: windows of images, patches of series, neighbours of points, frames."""
    pick = draw.pick
    rows, heads = draw.size(4, 13, 1), pick((1, 2, 3, 4, 6, 8, 12, 16))
    length, width = pick((4, 8, 9, 16, 25, 36, 42, 49, 63, 64, 96, 128, 196)), pick((8, 12, 16, 16, 20, 24, 32, 40, 48))
    kind, dtype = pick(
        (("efficient", "float32"), ("efficient", "float32"), ("cudnn", "bfloat16"), ("cudnn", "float16"))
    )
    if rows * heads * length * max(length, width) > MOST_ELEMENTS or (kind == "cudnn" and width % 8):
        return
    sizes = Heads(dtype, rows, heads, 1, length, length, width)
    parts = pick((0, 1, 3))
    yield attention_call(draw, kind, sizes, (parts, parts), is_causal=False, mask=None, is_trained=draw.chance(0.2))


def drawn_calls(draw: Draw) -> Iterator[dict[str, Any]]:
    """Convolutions, recurrent layers, attention and complex or added products of drawn sizes."""
    for number in range(16_000):
        layer = gap_convolution(draw)
        batch, dtype = draw.pick((1, 1, 2, 4, 8, 8, 16, 32)), draw.pick(TYPES)
        work = batch * prod(layer.image) * prod(layer.kernel) * layer.channels * layer.made // layer.groups
        drawn = convolution_calls(draw, layer, batch, dtype) if work <= MOST_PRODUCTS / 8 else ()
        several = [*drawn, *(convolution(draw, image_convolution(draw)) if number % 4 == 0 else ())]
        yield from (described(one, cold_flags(one, draw)) for one in several)
    for number in range(1500):
        fixed = [*attention(draw), *long_attention(draw), *short_attention(draw)]
        fixed += recurrent(draw) if number < 100 else ()
        yield from (described(one, [False] * len(described(one, [])["tensors"])) for one in fixed)


# What is missing.


class Gap(NamedTuple):
    """A call, its family and kind, how far the nearest measured kernel is (in octaves), and what today's table says."""

    call: dict[str, Any]
    family: str
    kind: str
    at: tuple[float, ...]
    octaves: float
    seconds: float


Rows = Sequence[tuple[list[str], list[Any]]]  # models and rows as `kernel_tables.gather` keeps them


def located(calls: Sequence[dict[str, Any]], rows: Rows) -> list[Gap]:
    """Each call with its distance to the measured kernels; kinds without any are infinitely far."""
    from torchgauge.predict.coordinates import locate
    from torchgauge.predict.kernel_tables import load_table

    table: Any = load_table("h200")
    signature_of_row: Any = import_module("kernel_tables").signature_of_row
    measured: dict[tuple[str, str], list[tuple[float, ...]]] = defaultdict(list)
    for _, row in rows:
        place = locate(signature_of_row(row), [flag == "1" for flag in row[7]])
        measured[place.family, place.kind].append(place.at)
    known = {kind: np.array(several, np.float32) for kind, several in measured.items()}
    places = [locate(signature_from(call["signature"]), call["cold"]) for call in calls]
    found = []
    for call, place, estimate in zip(calls, places, table.estimates(places), strict=True):
        several, octaves = known.get((place.family, place.kind)), float("inf")
        if several is not None:
            octaves = float(np.sqrt(((several - np.array(place.at, np.float32)) ** 2).sum(1).min()))
        found.append(Gap(call, place.family, place.kind, place.at, octaves, 2**estimate.log_s))
    return found


def signature_from(stored: dict[str, Any]) -> Any:
    from torchgauge.facts import Cost, Signature, TensorSpec

    def spec(known: dict[str, Any]) -> TensorSpec:
        stride = known["stride"]
        return TensorSpec(tuple(known["shape"]), known["dtype"], None if stride is None else tuple(stride),
                          known["stored"], known["index_bytes"])  # fmt: skip

    given, made = (tuple(spec(one) for one in stored[side]) for side in ("inputs", "outputs"))
    cost = Cost(0, *(stored["cost"][name] for name in ("flops", "bytes_read", "bytes_written")))
    return Signature(
        stored["op"], stored["overload"], stored["category"], "counted", (), given, made, stored["attributes"], cost, 0
    )


def report(gaps: Sequence[Gap]) -> int:
    """By op: calls that were drawn, those without a measured kernel of their kind, and those without one nearby."""
    by_op: dict[tuple[str, str], list[float]] = defaultdict(list)
    for gap in gaps:
        by_op[gap.family, gap.call["op"].removeprefix("aten::")].append(gap.octaves)
    print(f"{'family':12} {'op':44} {'calls':>6} {'no kind':>8} {'> ' + str(NEAR):>6}")
    for (family, name), distances in sorted(by_op.items(), key=lambda pair: -np.mean(np.array(pair[1]) > NEAR)):
        absent, far = (sum(one > limit for one in distances) for limit in (1e9, NEAR))
        print(f"{family:12} {name:44} {len(distances):6} {absent:8} {far:6}")
    return 0


def filled(gaps: Iterable[Gap], near: float = NEAR) -> list[Gap]:
    """The gaps without those that one before in the list fills, kinds in turn: the first call of every kind comes
    before the second of any, and kinds that were not measured before those that were. Calls of a few microseconds,
    which hardly matter to a model, come after longer ones."""
    kept: dict[tuple[str, str], list[Gap]] = defaultdict(list)
    places: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for gap in sorted(gaps, key=lambda gap: -min(gap.seconds, 50e-6)):
        if gap.octaves <= near or gap.seconds > LONG_S:
            continue
        at, known = np.array(gap.at, np.float32), places[gap.family, gap.kind]
        if known and np.sqrt(((np.array(known) - at) ** 2).sum(1).min()) <= near:
            continue
        known.append(at)
        kept[gap.family, gap.kind].append(gap)
    order = []
    for several in kept.values():
        for place, gap in enumerate(several):
            is_new = gap.octaves == float("inf")
            order.append((place * (0.5 if is_new else 1.0) - is_new, -gap.seconds, gap))
    order.sort(key=lambda row: row[:2])
    return [gap for *_, gap in order]


def found_gaps(rows: Rows, seed: int = 11) -> list[Gap]:
    """All calls that are drawn, with their nearest measured kernel."""
    draw = ModelSizes(seed)
    parts = [*NEW_PARTS, *((part, round(count * OLD_SHARE)) for part, count in PARTS)]
    examples = [example for part, count in parts for _ in range(count) for example in part(draw)]
    draw.random.shuffle(examples)
    calls = [*listed_calls(draw, examples), *optimizer_calls(draw), *drawn_calls(draw)]
    print(f"{len(calls)} calls", flush=True)
    return located(calls, rows)


def neighbours_of_models(rows: Rows) -> list[dict[str, Any]]:
    """Convolutions of models that take 10 to 100 µs and have no other measured kernel within half an octave, with half
    and twice the batch; those farthest from any other first."""
    from torchgauge.predict.coordinates import locate

    chosen: dict[str, list[tuple[Any, list[Any]]]] = defaultdict(list)
    tables: Any = import_module("kernel_tables")
    for models, row in rows:
        if row[0].startswith("aten::convolution") and not any(spec[3] is not None or spec[4] for spec in row[3]):
            place = locate(tables.signature_of_row(row), [flag == "1" for flag in row[7]])
            chosen[place.kind].append((np.array(place.at, np.float32), [models, row]))
    found = []
    for several in chosen.values():
        at = np.stack([place for place, _ in several])
        for number, (place, (models, row)) in enumerate(several):
            if not models or not 10e-6 <= row[9] <= 100e-6:
                continue
            away = np.sqrt(((at - place) ** 2).sum(1))
            away[number] = np.inf
            away[away < 0.02] = np.inf  # the same call from another run
            if away.min() <= 0.5:
                continue
            batch = row[3][1 if row[0].endswith("backward") else 0][0][0]
            found += [(float(away.min()), rebatched(row, batch, rung) | {"models": [UNNAMED]})
                      for rung in (batch * 2, batch // 2) if 1 <= rung <= 256]  # fmt: skip
    found.sort(key=lambda pair: -pair[0])
    return [call for _, call in found]


# Of the list for one run of ten minutes: the share of each family; convolutions are the hardest to predict.
SHARES = {"convolution": 0.4, "stream": 0.32, "matmul": 0.15, "attention": 0.08, "recurrent": 0.05}


def all_calls(rows: Rows, listed: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Calls of models, of modules of torch, and of drawn sizes that were measured."""
    missing = (gap.call for gap in filled(found_gaps([]), NEAR / 2))
    return [*left_over(listed, (), again=1.0), *missing, *slice_draw(), *measured_again(rows, OPS_OF, inf)]


def short_list(calls: Iterable[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Each call once, in an order in which a run of any length has seen some of everything: the families by their
    shares, and of each op and type a number that grows with the square root of how often it occurs."""
    by_family: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    names = {family: tuple(f"aten::{name}" for name in several) for family, several in OPS_OF.items()}
    for call in calls:
        family = next((family for family, several in names.items() if call["op"].startswith(several)), "stream")
        key = json.dumps([call["op"], call["overload"], call["tensors"], call["args"], call["cold"]], sort_keys=True)
        by_family[family].setdefault(key, call)
    order: list[tuple[float, dict[str, Any]]] = []
    for family, share in SHARES.items():
        found = balanced([*by_family[family].values()])[: round(most * share)]
        print(f"{family}: {len(found)} of {len(by_family[family])} calls")
        order += [(place / (most * share), call) for place, call in enumerate(found)]
    return [call for _, call in sorted(order, key=lambda pair: pair[0])]


def gap_draw(rows: Rows, listed: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The gaps; then short products and attentions again and neighbours of the convolutions of models; then short
    streamed kernels of the first list again, and more convolutions."""
    gaps = found_gaps(rows)
    report(gaps)
    calls = [gap.call for gap in filled(gaps)]
    counts = Counter(call["op"].removeprefix("aten::") for call in calls)
    print(f"{len(calls)} calls fill the gaps: {counts.most_common()}")
    convolutions, others = ([call for call in calls if ("convolution" in call["op"]) == is_one] for is_one in (1, 0))
    again = measured_again(rows, ("matmul", "attention"), AGAIN_S)
    beside = neighbours_of_models(rows)
    Draw(12).random.shuffle(beside)
    streamed = listed_again([row for row in rows if not row[1][0].startswith(NOT_STREAMED)], listed, SHORT_S)
    print(f"{len(again)} again, {len(beside)} beside convolutions of models, {len(streamed)} streamed again")

    def mixed(*lists: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        order = [(place / len(several), call) for several in lists for place, call in enumerate(several)]
        return [call for _, call in sorted(order, key=lambda pair: pair[0])]

    first, second = slice(0, MOST_CONVOLUTIONS), slice(MOST_CONVOLUTIONS, 2 * MOST_CONVOLUTIONS)
    return [*mixed(others, convolutions[first]), *mixed(again, beside[first]),
            *mixed(streamed, convolutions[second], beside[second])]  # fmt: skip
