"""Ops that only stream their tensors, in sizes drawn at random.

Each part is a class of functions as models call them (norms, reductions, resampling, pooling, padding, indexing,
sorting, layout changes, elementwise functions, random numbers, losses, transforms). A function is drawn with the rank,
layout, type and sizes of its tensors, extreme ratios among them (few large channels, many small ones, small planes of
large batches), traced as a forecast traces a model, forward and often backward, and every op of the trace is a call of
the list. So the list has the ops that a forecast looks up, with the arguments that they have there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from math import prod
from typing import Any, NamedTuple

import torch
from kernel_draws import Draw, Drawn, dense, described  # type: ignore[import-not-found]
from torch import Tensor, nn
from torch.nn import functional as F

TYPES = (torch.float32, torch.float32, torch.bfloat16, torch.bfloat16, torch.float16)
MOST_ELEMENTS = 1 << 26
TRACED_TOGETHER = 40  # functions in one trace: starting one takes as long as about five of them
# Of calls, those with inputs that come from memory; of the inputs of such a call, those that do.
COLD_CALLS, COLD_INPUTS = 0.35, 0.6


class Example(NamedTuple):
    """A function of tensors on the meta device, and whether its gradient is wanted."""

    function: Callable[..., Any]
    tensors: Sequence[Tensor]
    is_trained: bool = False


class Examples(nn.Module):
    """Runs functions one after the other, each with its gradient."""

    def __init__(self, examples: Sequence[Example]) -> None:
        super().__init__()
        self.examples = examples
        self.weight = nn.Parameter(torch.ones((), device="meta"))
        self.failed: list[str] = []

    def forward(self, *tensors: Tensor) -> Tensor:
        left = list(tensors)
        for example in self.examples:
            own = [left.pop(0) for _ in example.tensors]
            trained = [tensor.requires_grad_() for tensor in own if example.is_trained and tensor.is_floating_point()]
            try:
                made = example.function(*own)
                several = made if isinstance(made, tuple | list) else [made]
                with_gradients = [one for one in several if isinstance(one, Tensor) and one.requires_grad]
                if trained and with_gradients:
                    given = [torch.empty_like(one) for one in with_gradients]
                    torch.autograd.grad(with_gradients, trained, given, allow_unused=True)
            except (RuntimeError, ValueError, NotImplementedError, IndexError) as error:
                self.failed.append(f"{type(error).__name__}: {str(error)[:100]}")
        return self.weight * 2


class Sizes(Draw):  # type: ignore[misc]
    """Draws sizes of tensors as well."""

    def split(self, count: int, low: float = 9, high: float = 25.5) -> list[int]:
        """Sizes whose product is drawn between 2^low and 2^high, the octaves split at random, so that each of them is
        now and then nearly all of the product, or 1. Every other one is a multiple of 8 where it is large."""
        octaves = self.random.uniform(low, high)
        weights = [self.random.expovariate(1) for _ in range(count)]
        sizes = []
        for weight in weights:
            size = max(round(2 ** (octaves * weight / sum(weights))), 1)
            sizes.append(-(-size // 8) * 8 if size > 32 and self.chance(0.6) else size)
        while prod(sizes) > MOST_ELEMENTS:
            sizes[sizes.index(max(sizes))] //= 2
        return sizes

    def dtype(self) -> torch.dtype:
        found: torch.dtype = self.pick(TYPES)
        return found

    def layer(self, rank: int, low: float = 9, high: float = 25.5) -> list[int]:
        """Batch, channels and the sides of a signal, an image or a volume."""
        batch, channels, space = self.split(3, low, high)
        if self.chance(0.5):  # as models have them
            batch = self.pick((1, 2, 4, 8, 16, 32, 64))
            channels = self.pick((3, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048))
        dims = rank - 2
        side = max(round(space ** (1 / max(dims, 1))), 1)
        shape = [batch, channels, *[side] * dims]
        while prod(shape) > MOST_ELEMENTS:
            shape[shape.index(max(shape))] //= 2
        return shape

    def tensor(self, shape: Sequence[int], dtype: torch.dtype | None = None, *, last: bool | None = None) -> Tensor:
        """Channels first, or last in a third of the images and volumes."""
        found = torch.empty(list(shape), dtype=dtype or self.dtype(), device="meta")
        if last if last is not None else len(shape) in (4, 5) and self.chance(0.35):
            form = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
            return found.to(memory_format=form)
        return found


def streamed_draw() -> list[dict[str, Any]]:
    """Every call of the traces once, in random order; rare ops rather at the beginning."""
    draw = Sizes(9)
    examples = [example for part, count in PARTS for _ in range(count) for example in part(draw)]
    draw.random.shuffle(examples)
    calls = listed_calls(draw, examples)
    chosen: list[dict[str, Any]] = import_module("kernel_draws").balanced(calls)
    return chosen


def listed_calls(draw: Sizes, examples: Sequence[Example]) -> list[dict[str, Any]]:
    """Every call of the traces of these functions once, and of kernels that such traces do without."""
    collect: Any = import_module("collect")
    steps: Any = import_module("torchgauge.predict.steps")
    noted = collect.Noting.planner(steps)
    found: dict[str, dict[str, Any]] = {}
    failed: list[str] = []
    try:
        for start in range(0, len(examples), TRACED_TOGETHER):
            several = examples[start : start + TRACED_TOGETHER]
            for call in collect.described(traced(steps, several, failed), noted):
                # The last ones are those of the module's own weight, which is a number.
                is_small = call["tensors"] and all(prod(shape) < 2 for shape, _, _ in call["tensors"])
                if call["phase"] != "forward" or is_small:
                    continue
                key = str([call["op"], call["overload"], call["tensors"], call["args"]])
                found.setdefault(key, call | {"models": []})
            if start // TRACED_TOGETHER % 40 == 0:
                print(f"{start} of {len(examples)} functions, {len(found)} calls", flush=True)
    finally:
        steps.CudaPlanner = collect.Noting.original
    calls = [*found.values(), *(described(one, []) for _ in range(500) for one in fused(draw))]
    for call in calls:
        is_cold = draw.chance(COLD_CALLS)
        call["cold"] = [is_cold and draw.chance(COLD_INPUTS) for _ in call["tensors"]]
    for text in sorted(set(failed)):
        print(f"{failed.count(text)} failed: {text}")
    return calls


def fused(draw: Sizes) -> Iterator[Any]:
    """Kernels that only CUDA builds have; a trace on the CPU has other ops: RMS norm, cells of recurrent layers."""
    dtype = str(draw.dtype()).removeprefix("torch.")
    if draw.chance(0.6):
        rows, width = draw.split(2)
        width = draw.pick((64, 128, 256, 384, 768, 1024, 2048, 3072, 4096, 8192)) if draw.chance(0.6) else width
        rows = max(min(rows, MOST_ELEMENTS // width), 1)
        data, weight, sums = dense([rows, width], dtype), dense([width], dtype), dense([rows, 1], "float32")
        yield Drawn("_fused_rms_norm", {"input": data, "weight": weight}, {"normalized_shape": [width], "eps": None},
                    [data, sums])  # fmt: skip
        if draw.chance(0.5):
            given = {"grad_out": data, "input": data, "rstd": sums, "weight": weight}
            yield Drawn("_fused_rms_norm_backward", given,
                        {"normalized_shape": [width], "output_mask": [True, True]}, [data, weight])  # fmt: skip
        return
    batch, units = draw.split(2, 5, 21)
    state = dense([batch, units], dtype)
    name, gates, kept = draw.pick((("lstm", 4, 4), ("gru", 3, 5)))
    wide, bias = dense([batch, gates * units], dtype), dense([gates * units], dtype)
    workspace = dense([batch, kept * units], dtype)
    before = {"cx": state} if name == "lstm" else {"hx": state}
    given = {"input_gates": wide, "hidden_gates": wide} | before | {"input_bias": bias, "hidden_bias": bias}
    made = [state, state, workspace] if name == "lstm" else [state, workspace]
    yield Drawn(f"_thnn_fused_{name}_cell", given, {}, made)
    if draw.chance(0.5) and name == "lstm":
        given = {"grad_hy": state, "grad_cy": state, "cx": state, "cy": state, "workspace": workspace}
        yield Drawn("_thnn_fused_lstm_cell_backward_impl", given, {"has_bias": True}, [wide, state, bias])
    elif draw.chance(0.5):
        yield Drawn("_thnn_fused_gru_cell_backward", {"grad_hy": state, "workspace": workspace}, {"has_bias": True},
                    [wide, wide, state, bias, bias])  # fmt: skip


def traced(steps: Any, examples: Sequence[Example], failed: list[str]) -> list[Any]:
    """The ops of a step that runs these functions."""
    from torchgauge.predict.devices import find_device
    from torchgauge.predict.kernels import Library
    from torchgauge.predict.optimizers import make_optimizer
    from torchgauge.source import candidate_inputs

    setting = steps.Setting(Library(find_device("h200").chip), train=True, optimizer=make_optimizer("sgd"))
    inputs = tuple(tensor for example in examples for tensor in example.tensors)
    model = Examples(examples)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            candidate = next(iter(candidate_inputs(model, inputs=inputs)))
            found = steps.trace(model, candidate, setting).step_ops
        except Exception as error:
            if len(examples) == 1:
                failed.append(f"{type(error).__name__}: {str(error)[:100]}")
                return []
            # One of them that cannot be traced: the others are traced alone.
            return [op for example in examples for op in traced(steps, [example], failed)]
    failed += model.failed
    return list(found)


# Norms.


def batch_norm(draw: Sizes) -> Iterator[Example]:
    """In training, with fixed statistics, and those of instance norms, which are batch norms of one sample."""
    rank = draw.pick((2, 3, 3, 3, 4, 4, 5, 5))
    shape = draw.layer(rank)
    if rank > 2 and draw.chance(0.25):
        shape = [1, shape[0] * shape[1], *shape[2:]]
    if prod(shape) == shape[1]:
        return
    data = draw.tensor(shape)
    affine = [draw.tensor(shape[1:2], data.dtype) for _ in range(2)] if draw.chance(0.8) else []
    kept = [torch.empty(shape[1], dtype=data.dtype, device="meta") for _ in range(2)]
    way = draw.pick(("train", "train", "train", "fixed", "fixed", "instance"))

    def norm(x: Tensor, *given: Tensor) -> Tensor:
        weight, bias = given[:2] if affine else (None, None)
        if way == "instance":
            return F.instance_norm(x, None, None, weight, bias) if x.dim() > 2 else x
        mean, variance = given[-2:]
        return F.batch_norm(x, mean.detach(), variance.detach(), weight, bias, way == "train")

    tensors = [data, *affine, *([] if way == "instance" else kept)]
    yield Example(norm, tensors, is_trained=way != "fixed" or draw.chance(0.15))


def group_norm(draw: Sizes) -> Iterator[Example]:
    rank = draw.pick((2, 3, 4, 4, 4, 5))
    shape = draw.layer(rank)
    groups = draw.pick([count for count in (1, 2, 4, 8, 16, 32, 32, 64, shape[1]) if shape[1] % count == 0])
    data = draw.tensor(shape)
    affine = [draw.tensor(shape[1:2], data.dtype) for _ in range(2)]
    yield Example(lambda x, w, b: F.group_norm(x, groups, w, b), [data, *affine], draw.chance(0.45))


def layer_norm(draw: Sizes) -> Iterator[Example]:
    rows, width = draw.split(2)
    shape = [rows, width]
    if draw.chance(0.4):
        shape = [*draw.split(2, 2, 12), draw.pick((64, 96, 128, 192, 256, 320, 384, 512, 768, 1024, 1280, 2048, 4096))]
    count = 2 if len(shape) > 2 and draw.chance(0.15) else 1
    data, sizes = draw.tensor(shape), shape[-count:]
    affine = [draw.tensor(sizes, data.dtype) for _ in range(2)]
    if draw.chance(0.3):
        yield Example(lambda x, w: F.rms_norm(x, sizes, w), [data, affine[0]], draw.chance(0.5))
    else:
        yield Example(lambda x, w, b: F.layer_norm(x, sizes, w, b), [data, *affine], draw.chance(0.5))


def weight_norm(draw: Sizes) -> Iterator[Example]:
    made, channels = draw.pick((32, 64, 128, 256, 512, 1024)), draw.pick((1, 32, 64, 128, 256, 512, 1024))
    weight = draw.tensor([made, channels, draw.pick((1, 3, 7, 11, 16, 41))])
    dim = draw.pick((0, 0, 0, 2))
    scale = [size if place == dim else 1 for place, size in enumerate(weight.shape)]
    yield Example(lambda v, g: torch._weight_norm(v, g, dim), [weight, draw.tensor(scale, weight.dtype)],
                  draw.chance(0.5))  # fmt: skip


# Reductions.


def axes(draw: Sizes) -> tuple[Tensor, list[int]]:
    """A tensor, and the dimensions that are reduced: inner, outer, middle, two of them, or the pixels of an image."""
    way = draw.pick(("inner", "inner", "outer", "middle", "middle", "pixels", "two", "all"))
    if way == "pixels":
        return draw.tensor(draw.layer(draw.pick((4, 4, 5)))), [-2, -1]
    shape = draw.split(2 if way in ("inner", "outer", "all") else 3)
    dims = {"inner": [1], "outer": [0], "middle": [1], "two": draw.pick(([0, 2], [0, 1], [1, 2])), "all": [0, 1]}[way]
    return draw.tensor(shape), dims


def reduction(draw: Sizes) -> Iterator[Example]:
    data, dims = axes(draw)
    name = draw.pick(("sum", "sum", "mean", "mean", "amax", "amax", "amin", "var", "std", "var_mean", "logsumexp",
                      "norm", "any", "normalize"))  # fmt: skip
    keep = draw.chance(0.4)
    functions: dict[str, Callable[[Tensor], Any]] = {
        "sum": lambda x: x.sum(dims, keepdim=keep), "mean": lambda x: x.mean(dims, keepdim=keep),
        "amax": lambda x: x.amax(dims, keepdim=keep), "amin": lambda x: x.amin(dims, keepdim=keep),
        "var": lambda x: x.var(dims, keepdim=keep), "std": lambda x: x.std(dims, keepdim=keep),
        "var_mean": lambda x: torch.var_mean(x, dims, keepdim=keep), "norm": lambda x: x.norm(2, dims, keepdim=keep),
        "logsumexp": lambda x: x.logsumexp(dims, keepdim=keep), "any": lambda x: (x > 0).any(dims[0], keepdim=keep),
        "normalize": lambda x: F.normalize(x, dim=dims[0]),
    }  # fmt: skip
    yield Example(functions[name], [data], draw.chance(0.25))


def whole_reduction(draw: Sizes) -> Iterator[Example]:
    data = draw.tensor(draw.split(draw.pick((1, 2, 3))))
    functions: tuple[Callable[[Tensor], Any], ...] = (
        torch.sum, torch.mean, torch.max, torch.min, torch.std, torch.argmax, torch.prod, torch.norm)  # fmt: skip
    yield Example(draw.pick(functions), [data], draw.chance(0.2))


def along(draw: Sizes) -> Iterator[Example]:
    """Functions that take one dimension: extrema with their places, softmax, sums up to each element."""
    data, (dim, *_) = axes(draw)
    functions: tuple[Callable[[Tensor], Any], ...] = (
        lambda x: x.max(dim), lambda x: x.max(dim), lambda x: x.min(dim), lambda x: x.argmax(dim),
        lambda x: x.argmin(dim), lambda x: x.softmax(dim), lambda x: x.softmax(dim), lambda x: x.softmax(dim),
        lambda x: x.log_softmax(dim), lambda x: x.cumsum(dim), lambda x: x.cumprod(dim), lambda x: x.prod(dim),
        lambda x: x.logcumsumexp(dim),
    )  # fmt: skip
    yield Example(draw.pick(functions), [data], draw.chance(0.35))


# Resampling.


def resampling(draw: Sizes) -> Iterator[Example]:
    """To a multiple or a part of the sides, or to fixed ones, as pyramids and decoders do."""
    dims = draw.pick((1, 2, 2, 2, 2, 2, 3))
    modes = {1: ("nearest", "linear"), 2: ("bilinear", "bilinear", "bilinear", "nearest", "nearest-exact", "bicubic"),
             3: ("nearest", "trilinear", "trilinear")}[dims]  # fmt: skip
    mode = draw.pick(modes)
    times = draw.pick((2, 2, 2, 2, 4, 8, 0.5, 1.5, 16, 32))
    shape = draw.layer(dims + 2, 8, 22 if times > 2 else 24)
    while prod(shape) * times**dims > MOST_ELEMENTS:
        shape[shape.index(max(shape))] //= 2
    sides = [max(round(side * times), 1) for side in shape[2:]]
    more: dict[str, Any] = {}
    if mode not in ("nearest", "nearest-exact"):
        more["align_corners"] = draw.chance(0.4)
        if mode in ("bilinear", "bicubic") and not more["align_corners"] and draw.chance(0.12):
            more["antialias"] = True
    if min(shape) < 1:
        return
    yield Example(lambda x: F.interpolate(x, size=sides, mode=mode, **more), [draw.tensor(shape)], draw.chance(0.4))


def sampling(draw: Sizes) -> Iterator[Example]:
    dims = draw.pick((2, 2, 2, 3))
    shape = draw.layer(dims + 2, 9, 23)
    out = [max(round(side * draw.pick((0.5, 1, 1, 2))), 1) for side in shape[2:]]
    if shape[0] * prod(out) * shape[1] > MOST_ELEMENTS:
        return
    data = draw.tensor(shape, last=False)
    grid = draw.tensor([shape[0], *out, dims], data.dtype, last=False)
    mode, padding = draw.pick(("bilinear", "bilinear", "nearest")), draw.pick(("zeros", "zeros", "border"))
    function = partial(F.grid_sample, mode=mode, padding_mode=padding, align_corners=draw.chance(0.3))
    yield Example(function, [data, grid], draw.chance(0.4))
    if draw.chance(0.2):
        size = [shape[0], 1, *out]
        yield Example(lambda t: F.affine_grid(t, size, False), [draw.tensor([shape[0], dims, dims + 1], data.dtype)])


def rearranged(draw: Sizes) -> Iterator[Example]:
    """Pixels to channels and back, shuffled channels, windows as columns and back."""
    way = draw.pick(("shuffle", "unshuffle", "channels", "unfold", "unfold", "fold", "windows"))
    times = draw.pick((2, 2, 3, 4))
    batch, channels, height, width = draw.layer(4, 9, 24)
    if way == "shuffle":
        data = draw.tensor([batch, max(channels // times**2, 1) * times**2, height, width])
        yield Example(lambda x: F.pixel_shuffle(x, times), [data], draw.chance(0.4))
    elif way in ("unshuffle", "windows"):
        data = draw.tensor([batch, channels, -(-height // times) * times, -(-width // times) * times])
        if way == "unshuffle":
            yield Example(lambda x: F.pixel_unshuffle(x, times), [data], draw.chance(0.4))
        else:
            yield Example(lambda x: x.unfold(2, times, times).unfold(3, times, times).contiguous(), [data])
    elif way == "channels":
        data = draw.tensor([batch, max(channels // times, 1) * times, height, width])
        yield Example(lambda x: F.channel_shuffle(x, times), [data])
    else:
        kernel = draw.pick((2, 3, 3, 4, 7))
        stride, padding = draw.pick((1, kernel, 2)), draw.pick((0, kernel // 2))
        if min(height, width) + 2 * padding < kernel:
            return
        out = [(side + 2 * padding - kernel) // stride + 1 for side in (height, width)]
        if batch * channels * kernel**2 * prod(out) > MOST_ELEMENTS:
            return
        if way == "unfold":
            function = partial(F.unfold, kernel_size=kernel, stride=stride, padding=padding)
            yield Example(function, [draw.tensor([batch, channels, height, width])], draw.chance(0.4))
        else:
            function = partial(F.fold, output_size=(height, width), kernel_size=kernel, stride=stride, padding=padding)
            yield Example(function, [draw.tensor([batch, channels * kernel**2, prod(out)])], draw.chance(0.4))


# Pooling and padding.


def pooling(draw: Sizes) -> Iterator[Example]:
    dims = draw.pick((1, 1, 2, 2, 3, 3, 3))
    shape = draw.layer(dims + 2, 10, 25)
    kernel = draw.pick((2, 2, 3, 3, 3, 5, 7))
    size = draw.pick((kernel, kernel, [1, kernel, kernel])) if dims == 3 else kernel
    stride = draw.pick((1, 2, kernel))
    padding = draw.pick((0, kernel // 2))
    padding = [0, padding, padding] if isinstance(size, list) else padding
    if min(shape[2:]) < kernel:
        return
    pools = {1: (F.max_pool1d, F.avg_pool1d), 2: (F.max_pool2d, F.avg_pool2d), 3: (F.max_pool3d, F.avg_pool3d)}
    function: Any = draw.pick(pools[dims])
    yield Example(lambda x: function(x, size, stride, padding), [draw.tensor(shape)], draw.chance(0.4))


def adaptive_pooling(draw: Sizes) -> Iterator[Example]:
    dims = draw.pick((1, 2, 2, 3))
    shape = draw.layer(dims + 2, 10, 25)
    pools = {
        1: (F.adaptive_avg_pool1d, F.adaptive_max_pool1d), 2: (F.adaptive_avg_pool2d, F.adaptive_max_pool2d),
        3: (F.adaptive_avg_pool3d, F.adaptive_max_pool3d),
    }  # fmt: skip
    function: Any = draw.pick(pools[dims])
    size = draw.pick((1, 1, 2, 3, 4, 6, 7, 8, max(shape[2] // 2, 1)))
    sizes = [1, *[size] * (dims - 1)] if dims == 3 and draw.chance(0.3) else [size] * dims
    yield Example(lambda x: function(x, sizes if dims > 1 else size), [draw.tensor(shape)], draw.chance(0.4))


def padding(draw: Sizes) -> Iterator[Example]:
    dims = draw.pick((1, 2, 2, 3))
    shape = draw.layer(dims + 2, 10, 25)
    width, mode = draw.pick((1, 1, 2, 3, 4)), draw.pick(("reflect", "reflect", "replicate", "circular", "constant"))
    if min(shape[2:]) <= width or prod(shape[:2]) * prod(side + 2 * width for side in shape[2:]) > MOST_ELEMENTS:
        return
    sides = [width] * (2 * dims) if draw.chance(0.7) else [0, width] * dims
    yield Example(lambda x: F.pad(x, sides, mode), [draw.tensor(shape)], draw.chance(0.4))


# Indexing and sorting.


def indexing(draw: Sizes) -> Iterator[Example]:
    """Rows of a table, elements along a dimension, points of sets, sums into places."""
    rows, width = draw.split(2, 9, 24)
    count = max(draw.split(1, 2, 20)[0], 1)
    count = max(min(count, MOST_ELEMENTS // width), 1)
    table = draw.tensor([rows, width])
    places = draw.tensor([count], torch.int64)
    data = draw.tensor([count, width], table.dtype)
    batch, points, few, wide = draw.split(4, 10, 23)
    sets = draw.tensor([batch, points, wide])
    way = draw.pick(("embedding", "embedding", "select", "rows", "add", "put", "accumulate", "scatter_add", "gather",
                     "gather", "scatter", "points", "bag", "take", "one_hot", "search", "reduce"))  # fmt: skip
    is_trained = draw.chance(0.4)
    if way == "embedding":
        yield Example(lambda t, i: F.embedding(i, t), [table, places], is_trained)
    elif way == "select":
        yield Example(lambda t, i: t.index_select(0, i), [table, places], is_trained)
    elif way == "rows":
        yield Example(lambda t, i: t[i], [table, places], is_trained)
    elif way == "add":
        yield Example(lambda t, i, x: t.index_add(0, i, x), [table, places, data], is_trained)
    elif way in ("put", "accumulate"):
        yield Example(lambda t, i, x: t.index_put((i,), x, accumulate=way == "accumulate"), [table, places, data])
    elif way in ("scatter_add", "reduce"):
        spread = places[:, None].expand(count, width)
        if way == "reduce":
            yield Example(lambda t, i, x: t.scatter_reduce(0, i, x, "amax"), [table, spread, data], is_trained)
        else:
            yield Example(lambda t, i, x: t.scatter_add(0, i, x), [table, spread, data], is_trained)
    elif way in ("gather", "scatter", "take"):
        index = draw.tensor([batch, few, wide], torch.int64)
        if way == "scatter":
            few_index = draw.tensor([batch, min(few, points), wide], torch.int64)
            values = draw.tensor(few_index.shape, sets.dtype)
            yield Example(lambda x, i, v: x.scatter(1, i, v), [sets, few_index, values], is_trained)
        else:
            yield Example(lambda x, i: x.gather(1, i), [sets, index], is_trained)
    elif way == "points" and batch * few * wide <= MOST_ELEMENTS:
        index = draw.tensor([batch, few], torch.int64)
        number = torch.empty(batch, 1, dtype=torch.int64, device="meta")
        yield Example(lambda x, b, i: x[b, i], [sets, number, index], is_trained)
    elif way == "bag":
        bags = max(count // draw.pick((1, 2, 8, 32)), 1)
        starts = torch.empty(bags, dtype=torch.int64, device="meta")
        mode = draw.pick(("sum", "mean"))
        yield Example(lambda t, i, o: F.embedding_bag(i, t, o, mode=mode), [table, places, starts])
    elif way == "one_hot":
        classes = draw.pick((10, 100, 1000))
        few_places = torch.empty(min(count, MOST_ELEMENTS // classes), 1, dtype=torch.int64, device="meta")
        zeros = torch.empty(few_places.shape[0], classes, device="meta")
        yield Example(lambda z, i: z.scatter(1, i, 1.0), [zeros, few_places])
    elif way == "search":
        edges = torch.empty(draw.split(1, 3, 14)[0], device="meta")
        yield Example(torch.bucketize, [torch.empty(count, device="meta"), edges])


def sorting(draw: Sizes) -> Iterator[Example]:
    rows, columns = draw.split(2, 6, 23)
    data = draw.tensor([rows, columns], draw.pick((torch.float32, torch.float32, torch.bfloat16, torch.int64)))
    many = min(columns, draw.pick((1, 3, 5, 10, 32, 100, 500)))
    way = draw.pick(("sort", "argsort", "topk", "topk", "topk", "kthvalue", "median", "outer"))
    functions: dict[str, Callable[[Tensor], Any]] = {
        "sort": lambda x: x.sort(-1, descending=True), "argsort": lambda x: x.argsort(-1),
        "topk": lambda x: x.topk(many, -1), "kthvalue": lambda x: x.kthvalue(many, -1),
        "median": lambda x: x.median(-1), "outer": lambda x: x.sort(0),
    }  # fmt: skip
    yield Example(functions[way], [data], data.is_floating_point() and draw.chance(0.2))


# Layout.


def joined(draw: Sizes) -> Iterator[Example]:
    """Concatenations along any dimension, of parts of different sizes."""
    rank, count = draw.pick((2, 3, 3, 4, 4, 5)), draw.pick((2, 2, 2, 3, 4, 8, 16))
    shape, dtype = draw.split(rank, 8, 24), draw.dtype()
    dim, last = draw.random.randrange(rank), rank in (4, 5) and draw.chance(0.35)
    parts = []
    for _ in range(count):
        own = list(shape)
        own[dim] = max(round(own[dim] * draw.pick((1, 1, 1, 0.5, 2))), 1)
        parts.append(draw.tensor(own, dtype, last=last))
    if sum(part.numel() for part in parts) > MOST_ELEMENTS:
        return
    if draw.chance(0.25):
        same = [draw.tensor(shape, dtype, last=last) for _ in range(count)]
        if count * prod(shape) <= MOST_ELEMENTS:
            yield Example(lambda *xs: torch.stack(xs, dim), same, draw.chance(0.2))
        return
    yield Example(lambda *xs: torch.cat(xs, dim), parts, draw.chance(0.2))


def moved(draw: Sizes) -> Iterator[Example]:
    """Copies in another order or type, of parts, and repeated."""
    rank = draw.pick((2, 3, 3, 4, 4, 5, 6))
    shape = draw.split(rank, 8, 25)
    data = draw.tensor(shape)
    dim, times = draw.random.randrange(rank), draw.pick((2, 2, 3, 4, 8))
    order = list(range(rank))
    draw.random.shuffle(order)
    other = draw.pick((torch.float32, torch.bfloat16, torch.float16))
    half = max(shape[dim] // 2, 1)
    ways: dict[str, Callable[[Tensor], Any]] = {
        "permute": lambda x: x.permute(order).contiguous(), "cast": lambda x: x.to(other),
        "cast_permuted": lambda x: x.permute(order).to(other), "roll": lambda x: x.roll(half, dim),
        "roll_two": lambda x: x.roll((half, 1), (dim, (dim + 1) % rank)), "flip": lambda x: x.flip(dim),
        "repeat": lambda x: x.repeat(*(times if place == dim else 1 for place in range(rank))),
        "interleave": lambda x: x.repeat_interleave(times, dim),
        "expand": lambda x: x.unsqueeze(dim).expand(*shape[:dim], times, *shape[dim:]).contiguous(),
        "part": lambda x: x.narrow(dim, 0, half).contiguous(), "one": lambda x: x.select(dim, 0).contiguous(),
        "strided": lambda x: x.transpose(0, dim)[::2].contiguous(),
    }  # fmt: skip
    way = draw.pick(("permute", "permute", "permute", *ways))
    if way in ("repeat", "interleave", "expand") and prod(shape) * times > MOST_ELEMENTS:
        return
    yield Example(ways[way], [data], way not in ("cast", "permute") and draw.chance(0.4))


def written(draw: Sizes) -> Iterator[Example]:
    """Into parts of a tensor, and triangles."""
    shape = draw.split(draw.pick((2, 3, 4)), 8, 24)
    data = draw.tensor(shape)
    half = max(shape[-1] // 2, 1)

    def part(x: Tensor, y: Tensor) -> Tensor:
        x[..., :half] = y
        return x

    ways: tuple[tuple[Callable[..., Any], list[Tensor]], ...] = (
        (part, [data, draw.tensor([*shape[:-1], half], data.dtype)]),
        (lambda x: x.tril(), [data]), (lambda x: x.triu(1), [data]),
        (lambda x: x.zero_(), [data]), (lambda x: x.fill_(2.0), [data]),
    )  # fmt: skip
    yield Example(*draw.pick(ways))


# Elementwise functions.


UNARY: tuple[Callable[[Tensor], Any], ...] = (
    torch.relu, torch.sigmoid, torch.tanh, torch.exp, torch.log, torch.sqrt, torch.rsqrt, torch.sin, torch.cos,
    torch.abs, torch.neg, torch.reciprocal, torch.square, torch.erf, torch.floor, torch.round, torch.sign, torch.log1p,
    torch.expm1, torch.isnan, torch.log2, torch.atan, F.silu, F.gelu, partial(F.gelu, approximate="tanh"), F.elu,
    F.selu, F.celu, F.softplus, F.mish, F.leaky_relu, F.hardswish, F.hardsigmoid, F.hardtanh, F.relu6, F.logsigmoid,
    F.softsign, F.tanhshrink, F.softshrink, partial(F.glu, dim=1), lambda x: x.clamp(0, 1), lambda x: x.clamp_min(0),
    lambda x: x**2, lambda x: x**3, lambda x: x**0.5, lambda x: x**1.7, lambda x: x * 2, lambda x: x + 1,
    lambda x: 1 - x, lambda x: 1 / x, lambda x: x / 3, lambda x: x > 0, lambda x: x == 0, lambda x: x.clone(),
    lambda x: torch.zeros_like(x), lambda x: torch.full_like(x, 2.0), lambda x: x.relu_(), lambda x: x.add_(1),
    lambda x: x.masked_fill(x > 0, 0.0), lambda x: torch.nan_to_num(x), lambda x: x.mul_(2), lambda x: F.silu(x, True),
    lambda x: F.leaky_relu_(x, 0.1), lambda x: x.softmax(-1),
)  # fmt: skip
BINARY: tuple[Callable[[Tensor, Tensor], Any], ...] = (
    torch.add, torch.add, torch.add, torch.mul, torch.mul, torch.mul, torch.sub, torch.sub, torch.div, torch.div,
    torch.maximum, torch.minimum, torch.gt, torch.eq, torch.pow, torch.atan2, torch.fmod, lambda x, y: x.add_(y),
    lambda x, y: x.mul_(y), lambda x, y: torch.lerp(x, y, 0.3), lambda x, y: torch.addcmul(x, x, y),
    lambda x, y: torch.addcdiv(x, x, y), lambda x, y: torch.where(x > y, x, y), lambda x, y: torch.where(x > 0, x, y),
    lambda x, y: x.masked_fill(y > 0, 0.0), torch.logical_and, F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss,
    lambda x, y: F.binary_cross_entropy_with_logits(x, y), lambda x, y: F.kl_div(x, y, reduction="batchmean"),
    lambda x, y: F.binary_cross_entropy(x.sigmoid(), y), F.cosine_similarity,
)  # fmt: skip


def pointwise_tensor(draw: Sizes) -> Tensor:
    return draw.tensor(draw.split(draw.pick((1, 2, 3))) if draw.chance(0.5) else draw.layer(draw.pick((3, 4, 4, 5))))


def unary(draw: Sizes) -> Iterator[Example]:
    data = pointwise_tensor(draw)
    yield Example(draw.pick(UNARY), [data], draw.chance(0.35))
    if data.dim() > 1 and draw.chance(0.04):
        yield Example(F.prelu, [data, draw.tensor([draw.pick((1, data.shape[1]))], data.dtype)], is_trained=True)


def binary(draw: Sizes) -> Iterator[Example]:
    """Both of one shape, or one broadcast along any of its dimensions; types may differ."""
    data = pointwise_tensor(draw)
    shape, layout = list(data.shape), data.dim() in (4, 5) and not data.is_contiguous()
    way = draw.pick(("equal", "equal", "vector", "channels", "some", "number", "types", "permuted"))
    if way == "vector":
        shape = shape[-1:]
    elif way == "channels" and len(shape) > 2:
        shape = [draw.pick((1, shape[0])), shape[1], *[1] * (len(shape) - 2)]
    elif way == "some":
        shape = [size if draw.chance(0.5) else 1 for size in shape]
    elif way == "number":
        shape = []
    dtype = draw.dtype() if way == "types" else data.dtype
    other = draw.tensor(shape, dtype, last=layout and len(shape) == data.dim())
    if way == "permuted" and len(shape) > 1:
        order = [*range(1, len(shape)), 0]
        other = torch.empty([shape[place] for place in order], dtype=dtype, device="meta")
        back = [order.index(place) for place in range(len(shape))]
        other = other.permute(back)
    yield Example(draw.pick(BINARY), [data, other], draw.chance(0.3))


# The others.


def random_numbers(draw: Sizes) -> Iterator[Example]:
    data = pointwise_tensor(draw)
    shape, dtype = list(data.shape), data.dtype
    ways: tuple[Callable[[Tensor], Any], ...] = (
        lambda x: F.dropout(x, 0.1), lambda x: F.dropout(x, 0.5), lambda x: F.dropout1d(x) if x.dim() == 3 else x,
        lambda x: F.dropout2d(x) if x.dim() == 4 else x, torch.rand_like, torch.randn_like,
        lambda x: torch.rand(shape, dtype=dtype), lambda x: torch.randn(shape, dtype=dtype),
        lambda x: torch.zeros(shape, dtype=dtype), lambda x: torch.ones(shape, dtype=dtype),
        lambda x: torch.full(shape, 2.0, dtype=dtype), lambda x: torch.arange(prod(shape)),
        lambda x: torch.arange(prod(shape), dtype=torch.float32), lambda x: torch.linspace(0, 1, prod(shape)),
        lambda x: x.new_zeros(shape), lambda x: torch.empty_like(x).bernoulli_(0.9), lambda x: F.alpha_dropout(x, 0.1),
        lambda x: torch.bernoulli(x), lambda x: x.uniform_(), lambda x: x.normal_(),
        lambda x: F.dropout(x, 0.2, inplace=True),
    )  # fmt: skip
    yield Example(draw.pick(ways), [data], draw.chance(0.3))


def loss(draw: Sizes) -> Iterator[Example]:
    """Cross-entropy of rows and of images."""
    if draw.chance(0.5):
        rows, classes = draw.split(2, 8, 25)
        shape, target = [rows, classes], [rows]
    else:
        batch, classes, height, width = draw.layer(4, 10, 25)
        shape, target = [batch, classes, height, width], [batch, height, width]
    smoothing = draw.pick((0.0, 0.0, 0.0, 0.1))
    is_nll = draw.chance(0.2)
    targets = torch.empty(target, dtype=torch.int64, device="meta")

    def entropy(x: Tensor, y: Tensor) -> Tensor:
        return F.nll_loss(x, y) if is_nll else F.cross_entropy(x, y, label_smoothing=smoothing)

    yield Example(entropy, [draw.tensor(shape), targets], draw.chance(0.6))


def transform(draw: Sizes) -> Iterator[Example]:
    """Fourier transforms of signals and images, and products of complex numbers."""
    way = draw.pick(("rfft", "irfft", "fft", "rfft2", "irfft2", "fft2", "stft", "product", "magnitude"))
    length = draw.pick((64, 96, 128, 200, 256, 400, 512, 720, 1000, 1024, 2048, 4096))
    side = draw.pick((7, 8, 14, 16, 28, 32, 56, 64, 96, 128, 224, 256))
    count = max(min(draw.split(1, 0, 16)[0], (1 << 24) // (side * side if way.endswith("2") else length)), 1)
    signal = torch.empty(count, length, device="meta")
    complex_signal = torch.empty(count, length // 2 + 1, device="meta", dtype=torch.complex64)
    image = torch.empty(count, side, side, device="meta")
    complex_image = torch.empty(count, side, side // 2 + 1, device="meta", dtype=torch.complex64)
    window = torch.empty(length, device="meta")
    ways: dict[str, Example] = {
        "rfft": Example(torch.fft.rfft, [signal], draw.chance(0.3)),
        "irfft": Example(lambda x: torch.fft.irfft(x, length), [complex_signal]),
        "fft": Example(torch.fft.fft, [complex_signal]),
        "rfft2": Example(torch.fft.rfft2, [image], draw.chance(0.3)),
        "irfft2": Example(lambda x: torch.fft.irfft2(x, (side, side)), [complex_image]),
        "fft2": Example(torch.fft.fft2, [complex_image]),
        "stft": Example(lambda x, w: torch.stft(x, length, length // 4, window=w, center=False, return_complex=True),
                        [torch.empty(draw.pick((1, 2, 8, 16)), length * draw.pick((4, 50, 200)), device="meta"),
                         window]),
        "product": Example(torch.mul, [complex_signal, complex_signal]),
        "magnitude": Example(torch.abs, [complex_signal]),
    }  # fmt: skip
    yield ways[way]


def distances(draw: Sizes) -> Iterator[Example]:
    """Distances of points, and products with one vector, which are streamed."""
    way = draw.pick(("points", "points", "vector", "vector", "dot", "cross", "outer"))
    if way == "points":
        batch, first, second = draw.split(3, 6, 23)
        wide = draw.pick((2, 3, 3, 16, 64))
        power = draw.pick((2.0, 2.0, 1.0))
        points = [draw.tensor([batch, count, wide], torch.float32) for count in (first, second)]
        yield Example(lambda x, y: torch.cdist(x, y, power), points)
    elif way == "vector":
        rows, columns = draw.split(2, 8, 24)
        matrix = draw.tensor([rows, columns])
        vector = draw.tensor([columns], matrix.dtype)
        if draw.chance(0.4):
            yield Example(torch.addmv, [draw.tensor([rows], matrix.dtype), matrix, vector])
        else:
            yield Example(torch.mv, [matrix, vector])
    elif way == "dot":
        length = draw.split(1, 4, 22)
        dtype = draw.dtype()
        yield Example(torch.dot, [draw.tensor(length, dtype), draw.tensor(length, dtype)])
    elif way == "cross":
        shape, dtype = [draw.split(1, 4, 20)[0], 3], draw.dtype()
        yield Example(torch.linalg.cross, [draw.tensor(shape, dtype), draw.tensor(shape, dtype)])
    else:
        rows, columns = draw.split(2, 8, 24)
        dtype = draw.dtype()
        yield Example(torch.outer, [draw.tensor([rows], dtype), draw.tensor([columns], dtype)])


# Each with how many functions are drawn of it.
PARTS: tuple[tuple[Callable[[Sizes], Iterator[Example]], int], ...] = (
    (batch_norm, 1900), (group_norm, 700), (layer_norm, 650), (weight_norm, 80), (reduction, 1500),
    (whole_reduction, 250), (along, 1100), (resampling, 1500), (sampling, 350), (rearranged, 500), (pooling, 1000),
    (adaptive_pooling, 500), (padding, 500), (indexing, 1300), (sorting, 350), (joined, 700), (moved, 1000),
    (written, 200), (unary, 1800), (binary, 1600), (random_numbers, 500), (loss, 350), (transform, 300),
    (distances, 300),
)  # fmt: skip
