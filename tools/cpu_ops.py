"""Single ops on the CPU, of sizes drawn at random: predicted time against measured time.

    python tools/cpu_ops.py [--each 8] [--seed 0] [--only conv] [-o ops.json]

One thread and processor time, the fastest of several runs, without and with results that the process must get memory
for (`fresh`). The ratio of a class is the median of predicted over measured time: the figures of `advise/op_time.py`
are checked with it. Models were not looked at: the sizes cover what layers of public models have.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import exp, log
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import torchgauge as tg
from torchgauge.advise.op_time import predicted_times

Drawn = tuple[Callable[..., Any], tuple[Tensor, ...]]
# Memory is kept by the process, so that runs measure the op and not the pages that Linux clears for it.
KEPT = {
    "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
    "MALLOC_MMAP_THRESHOLD_": str(8 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
MOST_FLOPS, MOST_ELEMENTS = 1.2e9, 3 << 20
SECONDS = 0.12  # for the runs of an op


class Single(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Tensor) -> Any:
        return self.function(*tensors)


@dataclass
class Draw:
    """Random sizes."""

    choose: random.Random

    def size(self, low: float, high: float) -> int:
        """Evenly in the logarithm."""
        return max(1, round(exp(self.choose.uniform(log(low), log(high)))))

    def pick(self, *values: Any) -> Any:
        return self.choose.choice(values)

    def shape(self, least: float = 1e4, dims: int = 3) -> tuple[int, ...]:
        """Of a tensor from `least` elements on."""
        while True:
            found = tuple(self.size(1, 512) for _ in range(dims))
            count = 1
            for size in found:
                count *= size
            if least <= count <= MOST_ELEMENTS and min(found[-2:]) > 3:
                return found


def convolution(draw: Draw, dims: int, kind: str) -> Drawn:
    while True:
        batch, inside, outside = draw.size(1, 32), draw.size(1, 256), draw.size(8, 256)
        size = [draw.size(8, {1: 2000, 2: 120, 3: 24}[dims]) for _ in range(dims)]
        kernel = [draw.pick(1, 3, 5, 7, 9)] * dims
        stride = draw.pick(1, 1, 2)
        if kind == "one channel":
            inside = draw.pick(1, 1, 2, 3)
            kernel = [draw.pick(3, 5, 7, 9)] * dims
        elif kind == "long":  # along one dimension only
            kernel = [1] * dims
            kernel[draw.pick(*range(dims))] = draw.pick(3, 7, 15, 25)
        elif kind == "long one channel":
            inside, kernel = 1, [1] * dims
            kernel[draw.pick(*range(dims))] = draw.pick(5, 9, 25, 51)
        elif kind == "whole side":
            kernel = [1] * dims
            at = draw.pick(*range(dims))
            kernel[at] = size[at] = draw.pick(8, 16, 22, 32)
        elif kind == "pointwise":
            kernel, stride = [1] * dims, 1
        elif kind == "few outputs":
            outside, kernel = draw.pick(1, 2, 3), [draw.pick(1, 3, 7)] * dims
        elif kind == "square":
            inside = draw.size(16, 256)
            kernel = [draw.pick(3, 3, 5)] * dims
        made, window = batch * outside, 1
        for side, width in zip(size, kernel, strict=True):
            made *= max(side - width + 1, 1) / stride
            window *= width
        flops = 2 * made * inside * window
        if (
            1e6 < flops < MOST_FLOPS
            and all(side >= width for side, width in zip(size, kernel, strict=True))
            and made < MOST_ELEMENTS
        ):
            break
    make: Callable[..., nn.Module] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dims]
    layer = make(inside, outside, tuple(kernel), stride)
    return layer, (torch.randn(batch, inside, *size),)


def transposed_convolution(draw: Draw) -> Drawn:
    while True:
        batch, inside, outside, side = draw.size(1, 8), draw.size(8, 256), draw.size(8, 128), draw.size(4, 32)
        kernel, stride, padding = draw.pick((2, 2, 0), (3, 2, 1), (4, 2, 1), (3, 1, 1))
        if 1e6 < 2 * batch * inside * outside * side**2 * kernel**2 < MOST_FLOPS:
            layer = nn.ConvTranspose2d(inside, outside, kernel, stride, padding)
            return layer, (torch.randn(batch, inside, side, side),)


def product(draw: Draw, kind: str) -> Drawn:
    while True:
        batch, rows, depth, columns = draw.size(1, 256), draw.size(16, 512), draw.size(16, 512), draw.size(16, 512)
        if kind == "many small":
            batch, rows, depth, columns = draw.size(500, 20000), draw.size(1, 16), draw.size(2, 32), draw.size(4, 200)
        elif kind == "shallow":  # sums of few terms
            batch, depth, rows, columns = draw.size(1, 16), draw.size(1, 10), draw.size(32, 512), draw.size(64, 20000)
        elif kind == "vectors":
            rows = 1
        elif kind == "few rows":
            rows, batch = draw.size(2, 12), draw.size(1, 256)
        elif kind == "narrow":  # attention of small heads
            depth, columns, rows = draw.pick(4, 8, 16), draw.size(16, 128), draw.size(16, 128)
        if (
            1e5 < 2 * batch * rows * depth * columns < MOST_FLOPS
            and batch * max(rows * columns, depth * columns) < 2 * MOST_ELEMENTS
        ):
            break
    right = torch.randn(batch, depth, columns)
    if draw.choose.random() < 0.4:
        right = torch.randn(batch, columns, depth).transpose(1, 2)
    return torch.bmm, (torch.randn(batch, rows, depth), right)


def linear(draw: Draw) -> Drawn:
    while True:
        rows, inside, outside = draw.size(1, 8000), draw.size(8, 2048), draw.size(8, 2048)
        if 1e5 < 2 * rows * inside * outside < MOST_FLOPS and rows * max(inside, outside) < MOST_ELEMENTS:
            return nn.Linear(inside, outside), (torch.randn(rows, inside),)


def pointwise(draw: Draw, kind: str) -> Drawn:
    shape = draw.shape(dims=draw.pick(2, 3, 4))
    x = torch.rand(shape) + 0.1
    both = draw.pick(torch.mul, torch.add, torch.sub)
    if kind == "unary":
        return draw.pick(torch.relu, torch.neg, torch.abs, torch.square, lambda x: x * 2.0, lambda x: x + 1.0), (x,)
    if kind == "two":
        return both, (x, torch.randn(shape))
    if kind == "by channel":
        return both, (x, torch.randn(shape[1], *(1,) * (len(shape) - 2)))
    if kind == "by row":
        return both, (x, torch.randn(*shape[:-1], 1))
    if kind == "by column":
        return both, (x, torch.randn(shape[-1]))
    if kind == "by a turned matrix":
        return both, (x, torch.randn(shape[-1], shape[-2]).t())
    if kind == "turned":
        return both, (x, torch.randn(*shape[:-2], shape[-1], shape[-2]).transpose(-1, -2))
    if kind == "outer":
        return both, (torch.randn(*shape[:-1], 1), torch.randn(*shape[:-2], 1, shape[-1]))
    return torch.div, (x, torch.rand(shape) + 0.5)


FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "elu": functional.elu, "selu": functional.selu, "celu": functional.celu, "leaky_relu": functional.leaky_relu,
    "softplus": functional.softplus, "mish": functional.mish, "hardswish": functional.hardswish,
    "hardtanh": functional.hardtanh, "logsigmoid": functional.logsigmoid, "softsign": functional.softsign,
    "exp": torch.exp, "log": torch.log, "log1p": torch.log1p, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt,
    "sin": torch.sin, "atan": torch.atan, "acos": lambda x: torch.acos(x / 2), "erf": torch.erf,
    "pow": lambda x: x.pow(1.7),
    "reciprocal": torch.reciprocal, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "silu": functional.silu,
    "gelu": functional.gelu, "clamp": lambda x: x.clamp(0.2, 0.8), "round": torch.round, "remainder": lambda x: x % 0.3,
    "sign": torch.sign, "floor": torch.floor, "prelu": lambda x: torch.prelu(x, torch.full((1,), 0.2)),
    "glu": lambda x: functional.glu(x[..., : x.shape[-1] // 2 * 2], -1),
}  # fmt: skip
RANDOM: dict[str, Callable[[Tensor], Any]] = {
    "bernoulli": lambda x: torch.empty_like(x).bernoulli_(0.8), "dropout": lambda x: functional.dropout(x, 0.2, True),
    "randn_like": torch.randn_like, "rand_like": torch.rand_like,
}  # fmt: skip


# Functions of positive numbers; others get both signs.
POSITIVE = {"log", "log1p", "sqrt", "rsqrt", "acos", "pow", "reciprocal"}


def values(draw: Draw, name: str) -> Tensor:
    shape = draw.shape(dims=2)
    return torch.rand(shape) + 0.1 if name in POSITIVE else torch.randn(shape)


def reduction(draw: Draw, kind: str) -> Drawn:
    dims = draw.pick(2, 3, 4)
    x = torch.randn(draw.shape(dims=dims))
    at = (
        -1
        if kind.endswith("last")
        else 0
        if kind.endswith("first")
        else draw.pick(*range(1, dims - 1))
        if dims > 2
        else 0
    )
    if kind.startswith("max"):
        return lambda x: x.max(at).values, (x,)
    if kind.startswith("amax"):
        return lambda x: x.amax(at), (x,)
    if kind.startswith("argmax"):
        return lambda x: x.argmax(at), (x,)
    if kind.startswith("std"):
        return lambda x: x.std(at), (x,)
    if kind.startswith("norm"):
        return lambda x: x.norm(dim=at), (x,)
    if kind.startswith("logsumexp"):
        return lambda x: x.logsumexp(at), (x,)
    return (lambda x: x.sum(at)) if kind.startswith("sum") else (lambda x: x.mean(at)), (x,)


def softmax(draw: Draw, kind: str) -> Drawn:
    if kind == "short":
        x = torch.randn(draw.size(2000, 40000), draw.size(2, 24))
        return lambda x: x.softmax(-1), (x,)
    x = torch.randn(draw.shape(dims=draw.pick(3, 4)))
    function = torch.log_softmax if kind == "log" else torch.softmax
    return (lambda x: function(x, 1)) if kind == "middle" else (lambda x: function(x, -1)), (x,)


def lookup(draw: Draw, kind: str) -> Drawn:
    rows, width, count = draw.size(100, 50000), draw.size(4, 512), draw.size(100, 30000)
    count = min(count, MOST_ELEMENTS // width)
    rows = min(rows, 4 * MOST_ELEMENTS // width)
    table, indices = torch.randn(rows, width), torch.randint(0, rows, (count,))
    if kind == "embedding":
        return functional.embedding, (indices, table)
    if kind == "index_select":
        return lambda t, i: t.index_select(0, i), (table, indices)
    if kind == "index":
        return lambda t, i: t[i], (table, indices)
    if kind == "index two":
        return lambda t, i, j: t[i, j], (table, indices, torch.randint(0, width, (count,)))
    if kind == "gather":
        return lambda t, i: t.gather(0, i), (table, indices[:, None].expand(-1, width).contiguous())
    if kind == "gather expanded":
        return lambda t, i: t.gather(0, i[:, None].expand(-1, t.shape[1])), (table, indices)
    if kind == "index_add":
        return lambda t, i, v: torch.zeros_like(t).index_add(0, i, v), (table, indices, torch.randn(count, width))
    if kind == "scatter_add":
        wide = indices[:, None].expand(-1, width)
        return lambda t, v: torch.zeros_like(t).scatter_add(0, wide, v), (table, torch.randn(count, width))
    if kind == "index last":
        return lambda t, i: t[:, i], (
            torch.randn(min(count, 500), rows)[:, :2000],
            torch.randint(0, min(rows, 2000), (draw.size(20, 2000),)),
        )
    return lambda t, i: torch.zeros_like(t).index_put((i,), t[:1].expand(len(i), -1)), (table, indices)


def sparse_product(draw: Draw) -> Drawn:
    rows, width = draw.size(500, 10000), draw.size(8, 256)
    count = min(draw.size(2, 60) * rows, 400_000)
    places = torch.randint(0, rows, (2, count))
    matrix = torch.sparse_coo_tensor(places, torch.rand(count), (rows, rows)).coalesce()
    return lambda x: torch.sparse.mm(matrix, x), (torch.randn(rows, min(width, MOST_ELEMENTS // rows)),)


def copy(draw: Draw, kind: str) -> Drawn:
    dims = draw.pick(3, 4)
    x = torch.randn(draw.shape(dims=dims))
    if kind == "transposed":
        return lambda x: x.transpose(-1, -2).contiguous(), (x,)
    if kind == "heads":
        return lambda x: x.transpose(0, 1).contiguous(), (x,)
    if kind == "permuted":
        order = list(range(dims))
        draw.choose.shuffle(order)
        return lambda x: x.permute(order).contiguous(), (x,)
    if kind == "expanded":
        rows, times = torch.randn(draw.size(4, 400), draw.size(4, 400)), draw.size(2, 32)
        return lambda x: x.unsqueeze(0).expand(times, -1, -1).contiguous(), (rows,)
    if kind == "expanded inside":
        rows, times = torch.randn(draw.size(4, 400), draw.size(4, 100)), draw.size(2, 32)
        return lambda x: x.unsqueeze(1).expand(-1, times, -1).contiguous(), (rows,)
    if kind == "expanded last":
        rows, times = torch.randn(draw.size(4, 400), draw.size(4, 100)), draw.size(2, 32)
        return lambda x: x.unsqueeze(2).expand(-1, -1, times).contiguous(), (rows,)
    if kind == "cat first":
        return lambda x, y: torch.cat([x, y], 0), (x, torch.randn_like(x))
    if kind == "cat last":
        return lambda x, y: torch.cat([x, y], -1), (x, torch.randn_like(x))
    if kind == "cat many":
        parts = draw.size(8, 200)
        return lambda *parts: torch.cat(parts, 1), tuple(torch.randn(draw.size(1, 40), 4, 32)[:1] for _ in range(parts))
    if kind == "roll":
        return lambda x: x.roll((3, 2), (-2, -1)), (x,)
    if kind == "flip":
        return lambda x: x.flip(-1), (x,)
    if kind == "stack":
        return lambda x, y: torch.stack([x, y], -1), (x, torch.randn_like(x))
    if kind == "repeat_interleave":
        return lambda x: x.repeat_interleave(3, 0), (x,)
    if kind == "slice":
        return lambda x: x[..., 1:].contiguous(), (x,)
    return lambda x: x.clone(), (x,)


def padded(draw: Draw, kind: str) -> Drawn:
    batch, channels = draw.size(1, 32), draw.size(1, 128)
    side = draw.size(8, 100)
    if kind.endswith("1d"):
        x = torch.randn(batch, channels, min(draw.size(32, 4000), MOST_ELEMENTS // (batch * channels)))
        return lambda x: functional.pad(x, (2, 2), mode=kind.split()[0]), (x,)
    x = torch.randn(batch, min(channels, max(MOST_ELEMENTS // (batch * side * side), 1)), side, side)
    return lambda x: functional.pad(x, (1, 1, 1, 1), mode=kind.split()[0]), (x,)


def pooled(draw: Draw, kind: str) -> Drawn:
    batch, side = draw.size(1, 16), draw.size(8, 100)
    channels = min(draw.size(3, 256), MOST_ELEMENTS // (batch * side * side))
    x = torch.randn(batch, channels, side, side)
    width = draw.pick(2, 2, 3, 5, 8)
    pools: dict[str, Callable[..., Any]] = {"max": functional.max_pool2d, "average": functional.avg_pool2d}
    function = pools.get(kind)
    if function is not None:
        stride = draw.pick(1, 2, width)
        return lambda x: function(x, width, stride), (x,)
    if kind == "long average":
        x = torch.randn(batch, channels, 1, draw.size(200, 1000))
        return lambda x: functional.avg_pool2d(x, (1, 75), (1, 15)), (x,)
    if kind == "average 1d":
        return lambda x: functional.avg_pool1d(x.flatten(2), 25, 1), (x,)
    if kind == "max 1d":
        return lambda x: functional.max_pool1d(x.flatten(2), 3, 2), (x,)
    side = draw.pick(1, 1, 4)
    return lambda x: functional.adaptive_avg_pool2d(x, side), (x,)


def resized(draw: Draw, kind: str) -> Drawn:
    batch, side = draw.size(1, 8), draw.size(8, 64)
    channels = min(draw.size(3, 256), max(MOST_ELEMENTS // (4 * batch * side * side), 1))
    if kind == "grid_sample":
        grid = torch.rand(batch, side, side, 2) * 2 - 1
        return lambda x, g: functional.grid_sample(x, g, align_corners=False), (
            torch.randn(batch, channels, side, side),
            grid,
        )
    options = {} if kind == "nearest" else {"align_corners": draw.pick(True, False)}
    return lambda x: functional.interpolate(x, scale_factor=2, mode=kind, **options), (
        torch.randn(batch, channels, side, side),
    )


def ordered(draw: Draw, kind: str) -> Drawn:
    x = torch.randn(draw.size(16, 2000), draw.size(16, 1000))
    calls: dict[str, Callable[[Tensor], Any]] = {
        "sort": lambda x: x.sort(-1), "topk": lambda x: x.topk(8, -1), "cumsum": lambda x: x.cumsum(-1),
        "cumsum first": lambda x: x.cumsum(0), "argsort": lambda x: x.argsort(-1),
    }  # fmt: skip
    return calls[kind], (x,)


def masks(draw: Draw, kind: str) -> Drawn:
    shape = draw.shape(dims=3)
    # The first so many of a row, as padding and causal masks hide: what a branch does can be foreseen.
    x, mask = torch.randn(shape), (torch.arange(shape[-1]) < 0.8 * shape[-1]).expand(shape).contiguous()
    calls: dict[str, Drawn] = {
        "where": (lambda x, m: torch.where(m, x, 0.0), (x, mask)),
        "where two": (torch.where, (mask, x, torch.randn(shape))),
        "masked_fill": (lambda x, m: x.masked_fill(m, -1e9), (x, mask)),
        "masked_fill by row": (lambda x, m: x.masked_fill(m, -1e9), (x, mask[..., :1, :])),
        "comparison": (lambda x: x > 0, (x,)),
        "comparison of integers": (lambda x: x == 3, (torch.randint(0, 9, shape),)),
        "mask as numbers": (lambda m: m.float(), (mask,)),
        "product with a mask": (torch.mul, (x, mask)),
        "and": (torch.logical_and, (mask, mask.roll(1))),
        "one_hot": (lambda i: functional.one_hot(i, 64), (torch.randint(0, 64, (draw.size(200, 20000),)),)),
        "half": (lambda x: x.to(torch.bfloat16), (x,)),
        "integers as floats": (lambda x: x.float(), (torch.randint(0, 9, shape),)),
    }  # fmt: skip
    return calls[kind]


def normalised(draw: Draw, kind: str) -> Drawn:
    batch, channels, side = draw.size(1, 16), draw.size(4, 64) * 4, draw.size(4, 64)
    channels = max(min(channels, MOST_ELEMENTS // (batch * side * side)) // 4 * 4, 4)
    image = torch.randn(batch, channels, side, side)
    if kind == "layer":
        width = draw.size(16, 1024)
        return nn.LayerNorm(width), (torch.randn(min(draw.size(64, 20000), MOST_ELEMENTS // width), width),)
    made: dict[str, nn.Module] = {
        "batch": nn.BatchNorm2d(channels).eval(), "group": nn.GroupNorm(4, channels),
        "instance": nn.InstanceNorm2d(channels),
        "batch statistics": nn.BatchNorm2d(channels, track_running_stats=False),
    }  # fmt: skip
    return made[kind], (image,)


def recurrent(draw: Draw, kind: str) -> Drawn:
    steps, batch, inside, units = draw.size(4, 100), draw.size(1, 64), draw.size(16, 256), draw.size(16, 256)
    if kind == "lstm cell":
        return nn.LSTMCell(inside, units), (torch.randn(batch, inside),)
    layer: nn.Module = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[kind](inside, units, batch_first=True)
    return layer, (torch.randn(batch, steps, inside),)


def transformed(draw: Draw, kind: str) -> Drawn:
    x = torch.randn(draw.size(8, 400), draw.pick(64, 96, 128, 100, 250, 512, 720))
    if kind == "rfft":
        return lambda x: torch.fft.rfft(x), (x,)
    if kind == "irfft":
        return lambda x: torch.fft.irfft(x), (torch.fft.rfft(x),)
    if kind == "complex product":
        z = torch.randn(*x.shape, dtype=torch.complex64)
        return torch.mul, (z, z.roll(1))
    if kind == "unfold":
        side = draw.size(8, 48)
        return lambda x: functional.unfold(x, 3, padding=1), (
            torch.randn(draw.size(1, 8), draw.size(2, 64), side, side),
        )
    if kind == "einsum":
        a, b, c, d = draw.size(2, 32), draw.size(8, 64), draw.size(8, 64), draw.size(8, 64)
        return lambda x, y: torch.einsum("bnc,ncd->bnd", x, y), (torch.randn(a, b, c), torch.randn(b, c, d))
    if kind == "cdist":
        return torch.cdist, (torch.randn(draw.size(1, 8), draw.size(64, 700), 3), torch.randn(1, draw.size(64, 700), 3))
    q = torch.randn(draw.size(1, 8), draw.pick(4, 8), draw.size(16, 300), draw.pick(16, 32, 64))
    return functional.scaled_dot_product_attention, (q, torch.randn_like(q), torch.randn_like(q))


# For each function that draws, the first word of its kinds and the others.
FAMILIES: list[tuple[str, Callable[[Draw, str], Drawn], str]] = [
    ("bmm", product, "any, many small, shallow, vectors, few rows, narrow"),
    ("pointwise", pointwise, "unary, two, by channel, by row, by column, by a turned matrix, turned, outer, div"),
    ("reduction", reduction, "sum last, sum middle, sum first, mean last, mean middle, max last, max middle, "
                             "amax last, argmax last, std last, norm last, norm middle, logsumexp last"),
    ("softmax", softmax, "last, short, middle, log"),
    ("lookup", lookup, "embedding, index_select, index, index two, gather, gather expanded, index_add, scatter_add, "
                       "index last, index_put"),
    ("copy", copy, "plain, transposed, heads, permuted, expanded, expanded inside, expanded last, cat first, cat last, "
                   "cat many, roll, flip, stack, repeat_interleave, slice"),
    ("pad", padded, "constant 1d, reflect 1d, replicate 1d, constant 2d, reflect 2d, replicate 2d, circular 2d"),
    ("pool", pooled, "max, average, long average, average 1d, max 1d, adaptive"),
    ("resize", resized, "nearest, bilinear, bicubic, grid_sample"),
    ("order", ordered, "sort, topk, cumsum, cumsum first, argsort"),
    ("mask", masks, "where, where two, masked_fill, masked_fill by row, comparison, comparison of integers, "
                    "mask as numbers, product with a mask, and, one_hot, half, integers as floats"),
    ("norm", normalised, "batch, layer, group, instance, batch statistics"),
    ("recurrent", recurrent, "lstm, gru, rnn, lstm cell"),
    ("other", transformed, "rfft, irfft, complex product, unfold, einsum, cdist, attention"),
]  # fmt: skip
CONVOLUTIONS = ("square", "pointwise", "one channel", "long", "long one channel", "whole side", "few outputs", "any")


def kinds() -> Iterator[tuple[str, Callable[[Draw], Drawn]]]:
    for dims in (1, 2, 3):
        for kind in CONVOLUTIONS:
            if dims > 1 or not kind.startswith("long"):
                yield f"conv{dims}d {kind}", partial(convolution, dims=dims, kind=kind)
    yield "transposed convolution", transposed_convolution
    yield "linear", linear
    yield "sparse product", sparse_product
    for name, function in (*FUNCTIONS.items(), *RANDOM.items()):
        yield f"function {name}", partial(applied, name=name, function=function)
    for family, make, listed in FAMILIES:
        for kind in listed.split(", "):
            yield f"{family} {kind}", partial(of_kind, make, kind)


def of_kind(make: Callable[[Draw, str], Drawn], kind: str, draw: Draw) -> Drawn:
    return make(draw, kind)


def applied(draw: Draw, name: str, function: Callable[..., Any]) -> Drawn:
    return function, (values(draw, name),)


def measured_seconds(run: Callable[[], object]) -> float:
    """Processor time of the fastest of several groups of runs."""
    run()
    started = time.process_time()
    run()
    once = max(time.process_time() - started, 1e-6)
    group = max(1, int(0.002 / once))
    best, ends = float("inf"), time.process_time() + SECONDS
    rounds = 0
    while rounds < 3 or (time.process_time() < ends and rounds < 50):
        started = time.process_time()
        for _ in range(group):
            run()
        best, rounds = min(best, (time.process_time() - started) / group), rounds + 1
    return best


def rows(only: str, each: int, seed: int) -> Iterator[dict[str, Any]]:
    for kind, make in kinds():
        if only not in kind:
            continue
        draw = Draw(random.Random(f"{seed} {kind}"))
        for _ in range(each):
            function, inputs = make(draw)
            module = (function if isinstance(function, nn.Module) else Single(function)).eval()
            with torch.no_grad():
                real = measured_seconds(partial(module, *inputs))
            try:
                capture = tg.analyze(module, inputs=inputs, advice=False).capture
            except tg.TorchgaugeError as error:
                print(f"{kind}: {error}", file=sys.stderr)
                break
            predicted = predicted_times(capture.ops, None, "cpu", 1, None, None, len(capture.modules))
            shapes = [list(tensor.shape) for tensor in (*inputs, *module.parameters())]
            yield {
                "kind": kind, "shapes": shapes, "predicted_s": sum(predicted.values()), "measured_s": real,
                "ops": [op.op for op in capture.ops if op.status != "free"],
            }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("-o", dest="output", type=Path)
    options = parser.parse_args()
    if any(os.environ.get(name) != value for name, value in KEPT.items()):  # malloc reads them when a process starts
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **KEPT})
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    warnings.simplefilter("ignore")
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows(options.only, options.each, options.seed):
        found.setdefault(row["kind"], []).append(row)
    print("| kind | ops | predicted / measured | least | most |\n|---|---|---|---|---|")
    for kind, group in found.items():
        ratios = sorted(row["predicted_s"] / row["measured_s"] for row in group)
        print(f"| {kind} | {len(group)} | {statistics.median(ratios):.2f} | {ratios[0]:.2f} | {ratios[-1]:.2f} |")
    every = [log(row["predicted_s"] / row["measured_s"]) for group in found.values() for row in group]
    within = sum(abs(each) < log(2) for each in every) / len(every)
    print(f"\n{len(every)} ops, median {exp(statistics.median(every)):.2f}, within a factor of 2: {within:.0%}")
    if options.output:
        options.output.write_text(json.dumps([row for group in found.values() for row in group], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
