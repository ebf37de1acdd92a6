"""Calls of kernels in sizes drawn at random, where the models of the collection leave gaps.

`base_draw` belongs to the list that the package's first table was measured from, `next_draw`, `long_draw` and
`missing_draw` to those after it: each always draws the same calls.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from importlib import import_module
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torchgauge.facts import Signature

Tensor = list[Any]  # shape, stride, type
HALF_TYPES = ("bfloat16", "bfloat16", "float16")
UNNAMED = "a model of the list"  # where a list of calls does not say which


class Drawn(NamedTuple):
    """A call: tensors with the names of their arguments (a list where an argument takes several), the other arguments,
    the outputs."""

    op: str
    tensors: dict[str, Tensor | list[Tensor]]
    settings: dict[str, Any]
    outputs: list[Tensor]


def dense(shape: list[int], dtype: str, order: str = "first") -> Tensor:
    """Contiguous, or with the channels last."""
    stride, step = [0] * len(shape), 1
    dims = [*range(len(shape))] if order == "first" else [0, *range(2, len(shape)), 1]
    for dim in reversed(dims):
        stride[dim] = step
        step *= shape[dim]
    return [shape, stride, dtype]


class Draw:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.pick = self.random.choice

    def size(self, low: float, high: float, step: int) -> int:
        return max(step, round(2 ** self.random.uniform(low, high) / step) * step)

    def chance(self, share: float) -> bool:
        return self.random.random() < share


def base_draw() -> list[dict[str, Any]]:
    """Products of any shape, attention, sorting."""
    draw = Draw(1)
    size, pick = draw.size, draw.pick
    found: list[Drawn] = []
    for number in range(2400):
        dtype = pick(("float32", "bfloat16", "bfloat16", "float16"))
        step = pick((1, 8, 16, 64))
        m, n, k = size(0, 14, pick((1, 1, 16))), size(4, 13.5, step), size(4, 13.5, step)
        if m * n * k > 3e12 or (dtype == "float32" and m * n * k > 2e11):
            continue
        weight = pick(([[n, k], [k, 1]], [[n, k], [k, 1]], [[k, n], [n, 1]]))
        turned = weight[0] == [n, k]
        right = [[k, n], [1, k] if turned else [n, 1], dtype]
        left = [[m, k], [k, 1], dtype] if number % 7 else [[m, k], [1, m], dtype]
        if number % 3 == 0:
            found.append(Drawn("addmm", {"self": [[n], [1], dtype], "mat1": left, "mat2": right}, {},
                               [dense([m, n], dtype)]))  # fmt: skip
        elif number % 3 == 1:
            found.append(Drawn("mm", {"self": left, "mat2": right}, {}, [dense([m, n], dtype)]))
        else:
            b, m, n, k = size(1, 9, 1), size(0, 11, 1), size(4, 11, 8), size(4, 9, 8)
            if b * (m * k + n * k + m * n) * 4 > 2e9:
                continue
            right = [[b, k, n], [k * n, 1, k] if turned else [k * n, n, 1], dtype]
            found.append(Drawn("bmm", {"self": dense([b, m, k], dtype), "mat2": right}, {}, [dense([b, m, n], dtype)]))
    for _ in range(700):
        dtype = pick(("bfloat16", "bfloat16", "float16", "float32"))
        batch, heads = size(0, 6, 1), pick((4, 6, 8, 12, 16, 20, 24, 32))
        width = pick((32, 64, 64, 80, 96, 128))
        length = pick((1, size(4, 12, 1)))
        read = length if length > 1 and draw.chance(0.7) else size(5, 13, 16)
        is_causal = length == read and draw.chance(0.5)
        if batch * heads * length * read > 3e10 or batch * heads * read * width > 5e8:
            continue
        query, key = (
            [[batch, heads, rows, width], [rows * heads * width, width, heads * width, 1], dtype]
            for rows in (length, read)
        )
        # cuDNN also takes the one query of a decoding step; flash is what chips without it use.
        is_flash = length == 1 and draw.chance(0.3)
        kind = "efficient" if dtype == "float32" else "flash" if is_flash else "cudnn"
        more: dict[str, Any] = {"dropout_p": 0.0, "is_causal": is_causal, "scale": None}
        more |= {"return_debug_mask": False} if kind != "efficient" else {}
        more |= {"compute_log_sumexp": draw.chance(0.3)} if kind != "flash" else {}
        more |= {"attn_bias": None} if kind != "flash" else {}
        found.append(Drawn(f"_scaled_dot_product_{kind}_attention", {"query": query, "key": key, "value": key}, more,
                           [dense([batch, heads, length, width], dtype)]))  # fmt: skip
    for _ in range(300):
        rows, columns, dtype = size(0, 14, 1), size(4, 17, 1), pick(("float32", "bfloat16"))
        if rows * columns > 3e8:
            continue
        name = pick(("topk", "sort", "argmax", "cumsum", "_softmax"))
        settings: dict[str, dict[str, Any]] = {
            "topk": {"k": min(columns, 8), "dim": -1, "largest": True, "sorted": True},
            "sort": {"dim": -1, "descending": False}, "argmax": {"dim": -1, "keepdim": False},
            "cumsum": {"dim": -1, "dtype": None}, "_softmax": {"dim": -1, "half_to_float": False},
        }  # fmt: skip
        made = {"topk": [rows, min(columns, 8)], "argmax": [rows]}.get(name, [rows, columns])
        found.append(Drawn(name, {"self": dense([rows, columns], dtype)}, settings[name],
                           [dense(made, "int64" if name == "argmax" else dtype)]))  # fmt: skip
    return [described(one, cold_flags(one, draw)) for one in found]


def next_draw() -> list[dict[str, Any]]:
    """Convolutions, products, attention and recurrent layers with their gradients."""
    draw = Draw(2)
    found = [
        *(one for _ in range(3600) for one in convolution(draw)),
        *(one for _ in range(2600) for one in product(draw)),
        *(one for _ in range(3000) for one in attention(draw)),
        *(one for _ in range(220) for one in recurrent(draw)),
    ]
    return [described(one, cold_flags(one, draw)) for one in found]


def long_draw() -> list[dict[str, Any]]:
    """Attention over long and masked keys, steps of decoding, recurrent layers, gradients of convolutions."""
    draw = Draw(3)
    found = [
        *(one for _ in range(2600) for one in long_attention(draw)),
        *(one for _ in range(330) for one in recurrent(draw)),
        *(one for _ in range(3000) for one in rare_convolution(draw)),
    ]
    draw.random.shuffle(found)
    return [described(one, cold_flags(one, draw)) for one in found]


# Channels that published image models have, in their stages and in the bottlenecks and expansions between them.
CHANNELS = (8, 12, 16, 24, 32, 36, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120, 128, 144, 160, 168, 176, 184, 192,
            200, 208, 216, 224, 232, 240, 256, 272, 288, 304, 320, 336, 352, 368, 384, 400, 408, 432, 448, 464, 480,
            496, 512, 528, 544, 560, 576, 608, 624, 640, 672, 696, 720, 736, 768, 784, 816, 832, 864, 888, 896, 912,
            960, 1008, 1024, 1056, 1088, 1104, 1152, 1200, 1232, 1280, 1344, 1392, 1440, 1536, 1632, 1664, 1728,
            1792, 1824, 1920, 2016, 2048, 2304, 2560, 2688, 3072, 3200, 4096)  # fmt: skip


def missing_draw() -> list[dict[str, Any]]:
    return [described(one, cold) for one, cold in missing_kernels()]


def missing_kernels() -> list[tuple[Drawn, list[bool]]]:
    """More of all that is not streamed: convolutions with the channels of image models and with few, wide groups,
    products, attention and recurrent layers."""
    draw = Draw(4)
    found = [
        *(one for _ in range(12_500) for one in convolution(draw, image_convolution(draw))),
        *(one for _ in range(8_500) for one in product(draw)),
        *(one for _ in range(2_200) for one in attention(draw)),
        *(one for _ in range(800) for one in long_attention(draw)),
        *(one for _ in range(420) for one in recurrent(draw)),
    ]
    draw.random.shuffle(found)
    return [(one, cold_flags(one, draw)) for one in found]


class Convolved(NamedTuple):
    """What a convolution is drawn with."""

    form: str
    side: int
    channels: int
    made: int
    groups: int


def image_convolution(draw: Draw) -> Convolved:
    """The channels of a layer of an image model, and the ratios between its two sides that blocks have. Groups are
    narrow and many, or 2 to 64 wide ones, whose result may be wider than what they read."""
    pick = draw.pick
    form = pick(("pointwise", "pointwise", "pointwise", "full", "full", "full", "grouped", "grouped", "grouped",
                 "depthwise", "depthwise", "stem", "other"))  # fmt: skip
    side = pick((4, 7, 7, 7, 8, 8, 9, 10, 12, 12, 14, 14, 14, 16, 16, 18, 20, 24, 24, 28, 28, 28, 32, 32, 36, 40, 48,
                 56, 56, 56, 64, 72, 80, 96, 112, 112, 128, 144, 160, 192))  # fmt: skip
    most = 4096 if side <= 10 else 2048 if side <= 20 else 1024 if side <= 36 else 512 if side <= 72 else 256
    known = [channels for channels in CHANNELS if channels <= most]
    channels = pick(known)
    if form == "grouped":
        if draw.chance(0.5):
            width = pick((4, 8, 8, 16, 16, 24, 32, 32, 40, 48, 56, 64, 64, 72, 80, 96, 112, 120, 128))
            groups = max(2, channels // width)
            return Convolved(form, side, groups * width, groups * width, groups)
        groups = pick((2, 2, 2, 3, 4, 4, 8, 16, 32, 64))
        width, wider = max(channels // groups, 4), pick((1, 1, 2, 2, 0.5))
        return Convolved(form, side, groups * width, groups * max(int(width * wider), 4), groups)
    near = [other for other in known if 1 / 7 < other / channels < 7]
    made = pick((channels, channels, pick(near), min(known, key=lambda other: abs(other - channels * pick((2, 4, 6)))),
                 min(known, key=lambda other: abs(other - channels / pick((2, 4, 6))))))  # fmt: skip
    return Convolved(form, side, channels, made, 1)


def convolution(draw: Draw, given: Convolved | None = None) -> Iterator[Drawn]:
    """As image models have them: plain, pointwise, grouped, depthwise, the first layer, now and then of one dimension
    or transposed."""
    size, pick = draw.size, draw.pick
    dtype = pick(("float32", "float32", *HALF_TYPES))
    order = pick(("first", "last"))
    form = pick(("pointwise", "pointwise", "full", "full", "full", "grouped", "grouped", "depthwise", "depthwise",
                 "stem", "other"))  # fmt: skip
    batch = pick((1, 1, 2, 4, 8, 8, 16, 16, 32, 32, 64))
    side = pick((7, 7, 8, 10, 12, 14, 14, 16, 16, 20, 24, 28, 28, 32, 32, 40, 48, 56, 56, 64, 80, 96, 112, 128, 160))
    widest = 11.5 if side <= 16 else 10 if side <= 40 else 8.5
    step = pick((8, 8, 16, 32, 64))
    channels, made = size(3.5, widest, step), size(3.5, widest, step)
    kernel, stride, groups, transposed = [pick((3, 3, 3, 3, 5, 7))] * 2, pick((1, 1, 1, 2)), 1, False
    if given is not None:
        form, side, channels, made, groups = given
    image = [side, side]
    if form == "pointwise":
        kernel, stride = [1, 1], pick((1, 1, 1, 1, 1, 2))
    elif form == "grouped" and given is not None:
        kernel = pick(([3, 3], [3, 3], [3, 3], [3, 3], [1, 1], [5, 5]))
    elif form == "grouped":
        width = pick((4, 8, 16, 24, 32, 40, 48, 56, 64, 112))
        groups = max(2, channels // width)
        channels = made = groups * width
        kernel = [3, 3]
    elif form == "depthwise":
        groups = made = channels
    elif form == "stem":
        channels, made = 3, size(4, 7.5, 8)
        image = [pick((192, 224, 224, 224, 256, 288, 384))] * 2
        wide, stride = pick(((3, 2), (7, 2), (4, 4), (16, 16), (14, 14), (8, 8), (3, 1)))
        kernel = [wide, wide]
    elif form == "other":
        what = pick(("line", "row", "patch", "transposed"))
        if what == "line":
            image, kernel, stride, order = [size(7, 12, 1)], [pick((3, 5, 7, 9))], pick((1, 2)), "first"
        elif what == "row":
            kernel, stride = pick(([1, 7], [7, 1], [1, 3], [3, 1])), 1
        elif what == "patch":
            kernel, stride = [2, 2], 2
        else:
            kernel, stride, transposed = [2, 2], 2, True
    padding = [0 if wide in (stride, 4, 8, 14, 16) or transposed else wide // 2 for wide in kernel]
    out = [length * stride if transposed else (length + 2 * pad - wide) // stride + 1
           for length, pad, wide in zip(image, padding, kernel, strict=True)]  # fmt: skip
    work = batch * prod(out) * made * prod(kernel) * channels // groups
    if min(out) < 1 or work > 4e11 or batch * max(channels * prod(image), made * prod(out)) > 1 << 28:
        return
    data = dense([batch, channels, *image], dtype, order)
    weight = dense([channels, made, *kernel] if transposed else [made, channels // groups, *kernel], dtype, order)
    result = dense([batch, made, *out], dtype, order)
    has_bias = draw.chance(0.3)
    settings = {
        "stride": [stride] * len(image), "padding": padding, "dilation": [1] * len(image), "transposed": transposed,
        "output_padding": [0] * len(image), "groups": groups,
    }  # fmt: skip
    if not draw.chance(0.3):
        bias: dict[str, Any] = {"bias": dense([made], dtype)} if has_bias else {}
        none = {} if has_bias else {"bias": None}
        yield Drawn("convolution", {"input": data, "weight": weight} | bias, none | settings, [result])
        return
    mask = [form != "stem", True, has_bias]
    sizes = {"bias_sizes": [made] if has_bias else None}
    gradients = [data, weight, dense([made], dtype)]
    yield Drawn("convolution_backward", {"grad_output": result, "input": data, "weight": weight},
                sizes | settings | {"output_mask": mask},
                [one for one, flag in zip(gradients, mask, strict=True) if flag])  # fmt: skip


def product(draw: Draw) -> Iterator[Drawn]:
    """Layers (weights as `nn.Linear` has them), their two gradients, and products of attention in batches."""
    size, pick = draw.size, draw.pick
    dtype = pick(("float32", "float32", *HALF_TYPES))
    turned_left, turned_right = pick(((0, 1), (0, 1), (0, 1), (0, 0), (0, 0), (1, 0), (1, 0), (1, 1)))
    if draw.chance(0.35):
        b = pick((size(0, 11, 1), size(3, 9, 8)))
        length = pick((49, 64, 98, 128, 144, 196, 197, 256, 512, size(4, 11, 1), size(4, 10, 8)))
        width = pick((24, 32, 48, 64, 64, 80, 96, 128, 160, 256))
        m, n, k = pick(((length, length, width), (length, width, length), (width, width, length), (1, length, width)))
        if b * m * n * k > 1e11 or b * max(m * k, k * n, m * n) > 1 << 27:
            return
        left = [[b, m, k], [m * k, 1, m] if turned_left else [m * k, k, 1], dtype]
        right = [[b, k, n], [k * n, 1, k] if turned_right else [k * n, n, 1], dtype]
        yield Drawn("bmm", {"self": left, "mat2": right}, {}, [dense([b, m, n], dtype)])
        return
    step = pick((8, 16, 32, 64, 64, 128))
    rows = pick((size(0, 6, 1), size(4, 14, 1), size(7, 15, 16), 197 * size(0, 6, 1), 49 * size(2, 10, 1)))
    n, k = size(5, 13.5, step), size(5, 13.5, step)
    if turned_left:  # gradient of a weight: the rows are summed over
        rows, k = n, rows
        n = size(5, 13.5, step)
    if rows * n * k > (1e11 if dtype == "float32" else 8e11):
        return
    left = [[rows, k], [1, rows] if turned_left else [k, 1], dtype]
    right = [[k, n], [1, k] if turned_right else [n, 1], dtype]
    if not turned_left and draw.chance(0.5):
        yield Drawn("addmm", {"self": dense([n], dtype), "mat1": left, "mat2": right}, {}, [dense([rows, n], dtype)])
    else:
        yield Drawn("mm", {"self": left, "mat2": right}, {}, [dense([rows, n], dtype)])


def attention(draw: Draw) -> Iterator[Drawn]:
    """With a mask, grouped keys, one query, and gradients; queries, keys and values lie as one product makes them, or
    head by head."""
    size, pick = draw.size, draw.pick
    kind, dtype = pick((("cudnn", pick(HALF_TYPES)), ("cudnn", pick(HALF_TYPES)), ("efficient", "float32"),
                        ("flash", pick(HALF_TYPES))))  # fmt: skip
    batch, heads = pick((1, 1, 2, 4, 8, 8, 16, 32, 64, size(0, 9, 1))), pick((1, 2, 3, 4, 6, 8, 12, 14, 16, 20, 24, 32))
    width = pick((16, 24, 32, 32, 48, 64, 64, 64, 64, 80, 96, 128, 128))
    length = pick((1, size(4, 12, 1), size(4, 12, 1), size(5, 12, 64), 49, 64, 196, 197, 256, 512, 577, 1024))
    read = length if length > 1 and draw.chance(0.75) else pick((size(5, 13, 1), size(5, 13, 64)))
    is_causal = length == read and draw.chance(0.4)
    is_trained = length > 1 and draw.chance(0.25)
    groups = pick((1, 1, 1, 2, 4, 7, 8)) if kind == "cudnn" else 1
    groups = groups if heads % groups == 0 else 1
    if batch * heads * length * read > 1e10 or batch * heads * max(length, read) * width > 2e8:
        return

    parts = pick((0, 1, 3))
    mask: list[int] | None = None
    if kind != "flash" and not is_causal and draw.chance(0.2):
        padded = -(-read // 8) * 8
        mask = pick(([0, length * padded, padded, 1], [length * padded, 0, padded, 1]))
    sizes = Heads(dtype, batch, heads, groups, length, read, width)
    yield attention_call(draw, kind, sizes, (parts, parts), is_causal=is_causal, mask=mask, is_trained=is_trained)


class Heads(NamedTuple):
    """Attention of `length` queries over `read` keys; `groups` query heads share a key head."""

    dtype: str
    batch: int
    heads: int
    groups: int
    length: int
    read: int
    width: int


def attention_call(
    draw: Draw,
    kind: str,
    sizes: Heads,
    parts: tuple[int, int],
    *,
    is_causal: bool,
    mask: list[int] | None,
    is_trained: bool,
) -> Drawn:
    """`parts` of queries and of keys: how many lie side by side in the rows of a product (3 where one product makes
    queries, keys and values), 0 where they lie head by head. `mask` has the strides of the mask."""
    dtype, batch, heads, groups, length, read, width = sizes

    def laid(count: int, rows: int, parts: int) -> Tensor:
        if parts:
            step = parts * count * width
            return [[batch, count, rows, width], [rows * step, width, step, 1], dtype]
        return dense([batch, count, rows, width], dtype)

    query, key = laid(heads, length, parts[0]), laid(heads // groups, read, parts[1])
    out = [[batch, heads, length, width], [length * heads * width, width, heads * width, 1], dtype]
    given: dict[str, Any] = {"query": query, "key": key, "value": key}
    if mask is not None:
        given["attn_bias"] = [[batch, heads, length, read], mask, dtype]
    bias: dict[str, Any] = {} if mask is not None or kind == "flash" else {"attn_bias": None}
    common = {"dropout_p": 0.0, "is_causal": is_causal, "scale": None}
    if not is_trained:
        more = bias | common | ({"return_debug_mask": False} if kind != "efficient" else {})
        more |= {"compute_log_sumexp": draw.chance(0.2)} if kind != "flash" else {}
        return Drawn(f"_scaled_dot_product_{kind}_attention", given, more, [out])
    sums = [batch, heads, length, 1] if kind == "cudnn" else [batch, heads, length]
    kept = {"out": out, "logsumexp": dense(sums, "float32")}
    seeds = [[2], [1], "uint64"] if kind == "flash" else [[], [], "int64"]
    kept |= {"philox_seed": seeds, "philox_offset": [[0], [1], dtype] if kind == "flash" else seeds}
    lengths = {"cum_seq_q": None, "cum_seq_k": None, "max_q": length, "max_k": read} if kind != "efficient" else {}
    wanted = {"grad_input_mask": [True, True, True, mask is not None]} if kind == "efficient" else {}
    first = "grad_out_" if kind == "efficient" else "grad_out"
    return Drawn(f"_scaled_dot_product_{kind}_attention_backward", {first: out} | given | kept,
                 bias | lengths | wanted | common, [query, key, key])  # fmt: skip


def long_attention(draw: Draw) -> Iterator[Drawn]:
    """As language models have it: prompts with and without a mask, and one query over a cache."""
    size, pick = draw.size, draw.pick
    what = pick(("masked", "masked", "masked", "decode", "decode", "decode", "causal"))
    kind, dtype = ("cudnn", pick(HALF_TYPES)) if what != "masked" or draw.chance(0.75) else (
        "efficient", pick(("float32", "float32", "bfloat16", "float16")))  # fmt: skip
    heads, groups = pick(((4, 1), (8, 1), (12, 1), (16, 1), (20, 1), (32, 1), (40, 1), (8, 2), (24, 2), (24, 3),
                          (16, 4), (32, 4), (32, 4), (12, 6), (28, 7), (14, 7), (32, 8), (64, 8), (32, 16),
                          (8, 8)))  # fmt: skip
    width = pick((64, 64, 64, 80, 96, 128, 128, 128, 128, 192, 256))
    batch = pick((1, 1, 2, 4, 8, 16, 32, 64) if what == "decode" else (1, 1, 1, 2, 4, 8))
    read = pick((size(9, 14, 1), size(9, 14, 64), size(9, 14, 512)))
    length = 1 if what == "decode" else read
    if what == "masked":
        groups = 1 if kind == "efficient" or draw.chance(0.6) else groups  # masked keys are mostly repeated by head
        length = read if draw.chance(0.8) else pick((1, size(5, 10, 1)))
        if draw.chance(0.35):
            length = read = size(5, 10, pick((1, 8, 64)))
    padded = -(-read // 8) * 8
    mask = pick(([0, 0, padded, 1], [length * padded, 0, padded, 1])) if what == "masked" else None
    is_trained = what != "decode" and length > 1 and draw.chance(0.25)
    # About 5 ms at most, and 3 GB of keys.
    if batch * heads * length * read * width > (4e10 if dtype == "float32" else 4e11) / (3 if is_trained else 1):
        return
    if batch * heads * read * width / groups > 7e8:
        return
    sizes = Heads(dtype, batch, heads, groups, length, read, width)
    parts = pick((0, 1, 1)), pick((0, 0, 1)) if what == "decode" else pick((0, 1, 1))
    yield attention_call(draw, kind, sizes, parts, is_causal=what == "causal", mask=mask, is_trained=is_trained)


def rare_convolution(draw: Draw) -> Iterator[Drawn]:
    """Gradients, grouped, depthwise, transposed ones and those of one dimension, of which few had been measured."""
    for one in convolution(draw):
        settings, data = one.settings, one.tensors["input"]
        is_rare = settings["transposed"] or len(data[0]) == 3
        is_grouped = settings["groups"] > 1
        share = 1.0 if is_rare else 0.8 if one.op == "convolution_backward" else 0.35 if is_grouped else 0.1
        if draw.chance(share):
            yield one


def recurrent(draw: Draw) -> Iterator[Drawn]:
    """A layer in two types, each in inference, in training, and its gradient."""
    pick = draw.pick
    mode, gates = pick(((2, 4), (2, 4), (3, 3), (1, 1)))
    units = pick((64, 96, 128, 192, 256, 320, 384, 512, 512, 640, 768, 1024, 1024, 1280, 1536, 2048))
    features = units if draw.chance(0.6) else pick((40, 80, 128, 300, 512, 1024))
    batch, steps = pick((1, 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256)), draw.size(3, 9, 1)
    layers, directions = pick((1, 1, 2, 2, 3, 4)), pick((1, 1, 2))
    dtype = pick(("float32", "float32", "bfloat16", "float16"))
    data = dense([batch, steps, features], dtype)
    out = [[batch, steps, units * directions], [units * directions, batch * units * directions, 1], dtype]
    state = dense([layers * directions, batch, units], dtype)
    weights = []
    for layer in range(layers):
        wide = features if layer == 0 else units * directions
        for _ in range(directions):
            weights += [dense([gates * units, wide], dtype), dense([gates * units, units], dtype),
                        dense([gates * units], dtype), dense([gates * units], dtype)]  # fmt: skip
    held = dense([sum(prod(weight[0]) for weight in weights)], dtype)
    given: dict[str, Any] = {"input": data, "weight": weights}
    cell: dict[str, Any] = {"cx": state} if mode == 2 else {}
    none: dict[str, Any] = {} if mode == 2 else {"cx": None}
    shape = {"mode": mode, "hidden_size": units, "proj_size": 0, "num_layers": layers, "batch_first": True,
             "dropout": 0.0}  # fmt: skip
    rest = {"bidirectional": directions == 2, "batch_sizes": [], "dropout_state": None}
    fixed = {"weight_stride0": 4} | none | shape | rest
    for train in (False, True):
        yield Drawn("_cudnn_rnn", given | {"hx": state} | cell, {"weight_buf": None} | fixed | {"train": train},
                    [out, state, state])  # fmt: skip
    kept = {"output": out, "grad_output": out, "reserve": [[1], [1], "uint8"]}
    saved = {"weight_buf": held, "hx": state} | cell | kept
    yield Drawn("_cudnn_rnn_backward", given | saved,
                fixed | {"grad_hy": None, "grad_cy": None, "train": True, "output_mask": [False, False, False, True]},
                weights)  # fmt: skip


def cold_flags(drawn: Drawn, draw: Draw) -> list[bool]:
    """Which tensors come from memory: weights more often than what the op before made."""
    weights = {"mat2", "weight"} if drawn.op != "bmm" else set()
    owners = [name for name, given in drawn.tensors.items() for _ in range(len(given) if is_several(given) else 1)]
    return [draw.chance(0.6 if owner in weights else 0.2) for owner in owners]


def is_several(given: Tensor | list[Tensor]) -> bool:
    """Whether an argument takes a list of tensors."""
    return len(given) != 3 or isinstance(given[2], list)


def described(drawn: Drawn, cold: list[bool]) -> dict[str, Any]:
    """A row of the list of calls, with its signature."""
    tensors: list[Tensor] = []
    args: dict[str, Any] = {}
    for name, given in drawn.tensors.items():
        several = given if is_several(given) else [given]
        numbers = [{"tensor": len(tensors) + place} for place in range(len(several))]
        tensors += several
        args[name] = numbers if is_several(given) else numbers[0]
    args |= drawn.settings
    name = f"aten::{drawn.op}"
    return {"op": name, "overload": "", "dtype": tensors[0][2], "tensors": tensors, "args": args, "cold": cold,
            "models": [], "signature": asdict(signature_of(name, "", tensors, args, drawn.outputs))}  # fmt: skip


def signature_of(op: str, overload: str, tensors: list[Tensor], args: dict[str, Any], outputs: list[Tensor]) -> Any:
    """What a row of the list of calls is for the tables; tensors of `args` are numbers."""
    from torchgauge.cost import Call, assess
    from torchgauge.facts import Signature, TensorSpec
    from torchgauge.facts.tensor import is_contiguous

    def spec(shape: list[int], stride: list[int], dtype: str) -> TensorSpec:
        laid = None if is_contiguous(tuple(shape), tuple(stride)) else tuple(stride)
        return TensorSpec(tuple(shape), dtype, laid)

    inputs, made = (tuple(spec(*one) for one in several) for several in (tensors, outputs))

    def bound(value: Any) -> Any:
        if isinstance(value, dict):
            return inputs[value["tensor"]] if "tensor" in value else value["torch"]
        return [bound(item) for item in value] if isinstance(value, list) else value

    found = assess(Call(op, {name: bound(value) for name, value in args.items()}, made, inputs))
    plain = {name: value for name, value in args.items() if value is not None and "tensor" not in str(value)}
    return Signature(op, overload, found.category, found.status, (), inputs, made, plain, found.cost, 0)


def left_over(listed: Iterable[dict[str, Any]], measured: Iterable[Signature], again: float) -> list[dict[str, Any]]:
    """Calls of an earlier list that were not measured, and this share of the others, to see how far two measurements of
    one kernel differ. Their results are those of a run on meta tensors."""
    import torch

    call: Any = import_module("kernel_device").Call
    draw = Draw(5)
    done = {(one.op, tuple((spec.shape, spec.dtype) for spec in one.inputs)) for one in measured}
    found = []
    for row in listed:
        key = row["op"], tuple((tuple(shape), dtype) for shape, _, dtype in row["tensors"])
        if key in done and not draw.chance(again):
            continue
        try:
            made = call(row | {"cold": []}, "meta")()
        except (RuntimeError, NotImplementedError, KeyError, TypeError):
            continue  # an op that meta tensors do without
        several = made if isinstance(made, tuple | list) else () if made is None else (made,)
        outputs = [
            [list(one.shape), list(one.stride()), str(one.dtype).removeprefix("torch.")]
            for one in several
            if isinstance(one, torch.Tensor)
        ]
        signature = signature_of(row["op"], row["overload"], row["tensors"], row["args"], outputs)
        found.append(row | {"models": [UNNAMED], "signature": asdict(signature)})
    return found


def balanced(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """In random order, so that a run that ends early has seen some of everything; of each kind a share that grows with
    the square root of how often it occurs."""
    Draw(0).random.shuffle(calls)
    kinds: dict[Any, list[dict[str, Any]]] = {}
    for call in calls:
        kinds.setdefault((call["op"], call["tensors"][0][2] if call["tensors"] else ""), []).append(call)
    order = [(place / len(kind) ** 0.5, call) for kind in kinds.values() for place, call in enumerate(kind)]
    order.sort(key=lambda pair: pair[0])
    return [call for _, call in order]
