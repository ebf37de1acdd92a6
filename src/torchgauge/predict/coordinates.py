"""The place of an op in the tables of measured kernels: its kind, across which nothing is interpolated, and
coordinates.

Coordinates are base-2 logarithms of sizes, so that a distance of 1 is a factor of two. An op of torch may launch
several kernels (a convolution with a change of layout before it); it is measured and predicted as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import log2, prod
from typing import Any

from torchgauge.facts import OpRecord, Signature, TensorSpec
from torchgauge.facts.tensor import contiguous_stride
from torchgauge.predict.blocks import Attention, Recurrence, Streaming
from torchgauge.predict.tiles import Product, Tiling

# Data that was last touched this many bytes of traffic ago has left the cache: four fifths of an H200's 50 MB.
CACHE_BYTES = 40_000_000
# Ops without a kernel: views and plain allocation. Those that fill memory (zeros, full) launch one.
_SILENT = ("empty", "new_empty", "detach", "alias", "lift_fresh", "resize")
_HALF_TYPES = ("float16", "bfloat16")
# Divisor of the logarithm of cold bytes: attention reads everything many times over.
_COLD_SCALE = {"attention": 80, "recurrent": 40, "grouped": 40}


@dataclass(frozen=True, slots=True)
class Place:
    """`family` is the table, `kind` what must be equal, `at` the coordinates. `flops` are done at the rate of `rate`
    ("tf32" for float32 convolutions, as torch sets the switches). `waste` is the part of tiles and waves that does
    nothing, in octaves of time: tables hold how far a kernel is from the roof beyond that. `sizes` are those of
    published tables: rows, columns and depth of a product; of attention batch × heads, queries, keys, width of a head,
    whether it is causal, heads per key head; of recurrent layers steps, layers and directions."""

    family: str
    kind: str
    at: tuple[float, ...]
    flops: float
    rate: str
    nbytes: float = 0.0
    cold_bytes: float = 0.0
    launches: int = 1
    waste: float = 0.0
    sizes: tuple[int, ...] = ()
    tiling: Tiling | None = None  # of products and convolutions
    block_s: float = 0.0  # on a GPU beyond the roof: a block of threads takes so long, however few there are
    work: Attention | Recurrence | Streaming | None = None
    traits: tuple[float, ...] = ()  # what trees see in addition to the coordinates
    # About what separate kernels take: of a convolution for its bias and for changing the layout of its tensors.
    around_s: tuple[float, ...] = (0.0,)


def is_silent(op: OpRecord | Signature) -> bool:
    """Whether the op launches nothing: views, plain allocation, and ops whose results are all empty."""
    signature = op.signature if isinstance(op, OpRecord) else op
    name = signature.op.partition("::")[2]
    outputs = signature.outputs
    return (
        signature.category == "view"
        or name.startswith(_SILENT)
        or signature.op.startswith(("prim::", "higher_order::", "profiler::"))
        or (bool(outputs) and not any(spec.numel for spec in outputs))
    )


def cold_inputs(ops: Sequence[OpRecord]) -> list[tuple[bool, ...]]:
    """For each op which of its inputs come from memory and not from the cache: those that were last touched more than
    `CACHE_BYTES` of traffic ago. Weights and inputs of a run were touched in the run before."""
    described: dict[int, tuple[float, list[int]]] = {}  # by signature, its traffic and the bytes of its inputs
    calls = []
    for op in ops:
        signature = op.signature
        call = described.get(id(signature))
        if call is None:
            traffic = signature.cost.bytes_read + signature.cost.bytes_written
            call = described[id(signature)] = traffic, [spec.nbytes for spec in signature.inputs]
        calls.append(call)
    is_left = sum(traffic for traffic, _ in calls) > CACHE_BYTES  # by what the run before touched
    first = ops[0].index if ops else 0
    written: dict[int, float] = {}  # by op, how much traffic was before its end
    read: dict[tuple[int, int], float] = {}  # the same of the last reader, by writer and bytes
    found, now = [], 0.0
    for op, (own, sizes) in zip(ops, calls, strict=True):
        flags = []
        for nbytes, producer in zip(sizes, op.producers, strict=False):
            if producer is None or producer < first:
                flags.append(is_left)
                continue
            key = producer, nbytes
            touched = read.get(key)
            if touched is None:
                touched = written.get(producer, 0.0)
            flags.append(now - touched > CACHE_BYTES)
            read[key] = now + own
        found.append(tuple(flags))
        now += own
        written[op.index] = now
    return found


def locate(signature: Signature, cold: Iterable[bool] = ()) -> Place:
    """The place of a call in the tables."""
    name = signature.op.partition("::")[2].removesuffix("_")
    tensors = signature.inputs
    cold_bytes = float(sum(spec.distinct_bytes for spec, is_cold in zip(tensors, cold, strict=False) if is_cold))
    cost = signature.cost
    nbytes = float(cost.bytes_read + cost.bytes_written) or float(sum(s.distinct_bytes for s in signature.outputs))
    dtype = signature.dtype or "float32"
    place = _FAMILIES[name](name, signature) if name in _FAMILIES else None
    if place is not None:
        at = (*place.at, _log(cold_bytes) / _COLD_SCALE.get(place.family, 4))
        return replace(place, at=at, flops=place.flops or cost.flops, nbytes=nbytes, cold_bytes=cold_bytes)
    # A fused kernel streams like a product of two tensors.
    kind, at, traits, work = _streamed("mul" if name == "fused" else name, signature)
    launches = max(len(tensors) // 64, 1) if name.startswith(("_foreach", "_fused")) else 1
    is_grouped = name == "native_group_norm" and len(signature.outputs) > 1
    block_s = _group_norm_seconds(*signature.outputs[:2]) if is_grouped else 0.0
    # As a share: the weights of a norm come from memory too, but do not change the kernel.
    cold_share = 4 * cold_bytes / max(nbytes, cold_bytes, 1.0)
    return Place(
        "stream", kind, (*at, cold_share), cost.flops, dtype, nbytes, cold_bytes, launches, block_s=block_s,
        work=work, traits=traits,
    )  # fmt: skip


# Seconds of two more launches; of a block that sums up a group, seconds per element from the cache and from memory
# (both fitted to the H200's kernels with one group); blocks of 512 threads that run at a time.
_GROUP_LAUNCHES_S, _GROUP_ELEMENT_S, _GROUP_COLD_ELEMENT_S, _GROUP_BLOCKS = 4e-6, 0.42e-9, 0.84e-9, 4 * 132


def _group_norm_seconds(data: TensorSpec, mean: TensorSpec) -> float:
    """Seconds of a group norm on a GPU beyond a launch and its traffic. Of its three kernels the first has a block for
    each group of each sample (`RowwiseMomentsCUDAKernel` of aten/src/ATen/native/cuda/group_norm_kernel.cu), so few
    and long groups leave most of the device idle. `mean` has an element per group."""
    elements = data.numel / max(mean.numel, 1)
    each = _GROUP_COLD_ELEMENT_S if 2 * data.nbytes > CACHE_BYTES else _GROUP_ELEMENT_S
    return _GROUP_LAUNCHES_S + elements * each * -(-mean.numel // _GROUP_BLOCKS)


def _log(value: float) -> float:
    return log2(value) if value > 1 else 0.0


def _orientation(spec: TensorSpec) -> str:
    """The order of the last two dimensions: rows, columns, or neither."""
    if spec.stride is None:
        return "r"
    inner, outer = spec.stride[-1], spec.stride[-2] if len(spec.stride) > 1 else 1
    if inner == 1 or spec.shape[-1] == 1:
        return "r"
    return "c" if outer == 1 or (len(spec.shape) > 1 and spec.shape[-2] == 1) else "s"


def _alignment(*sizes: int) -> int:
    """The largest power of two, up to 16, that divides them all: loads are as wide as that allows."""
    return next(width for width in (16, 8, 4, 2, 1) if all(size % width == 0 for size in sizes))


_TYPES = ("float32", "bfloat16", "float16")


def _type_number(dtype: str) -> float:
    return float(_TYPES.index(dtype)) if dtype in _TYPES else float(len(_TYPES))


def _divisors(*sizes: int) -> tuple[float, ...]:
    """Base-2 logarithms of the largest power of two that divides each, up to 256."""
    return tuple(_log(min(size & -size, 256)) for size in sizes)


def _wholeness(rows: int, columns: int, batch: int) -> tuple[float, ...]:
    """How much larger whole waves of common tiles are, and sides in whole tiles."""
    found = []
    for across, down in ((128, 128), (256, 128), (128, 256), (64, 64), (128, 64), (64, 128)):
        count = -(-rows // across) * -(-columns // down) * batch
        waves = count / _MULTIPROCESSORS
        found += [min(-(-waves // 1) / waves, 3.3), _log(count)]
    sides = (-(-size // tile) * tile / size for tile in (128, 64) for size in (rows, columns))
    return (*found, *sides)


def _tiles(rows: float, columns: float, batch: float) -> tuple[float, ...]:
    """Tiles of 128 by 128 in waves over the multiprocessors: time goes in steps of a wave."""
    count = -(-rows // 128) * -(-columns // 128) * batch
    waves = count / _MULTIPROCESSORS
    full = -(-waves // 1)
    return _log(1 + count) / 2, (full / waves - 1 if waves > 0.5 else 0.0)


def _matmul(name: str, signature: Signature) -> Place | None:
    specs = [spec for spec in signature.inputs if len(spec.shape) >= 2]
    if name in ("addmm", "baddbmm"):
        specs = specs[-2:]
    if len(specs) == 1 and name in ("mm", "bmm"):
        specs = specs * 2
    is_complex = bool(specs) and specs[0].dtype.startswith("complex")
    if len(specs) < 2 or not (specs[0].is_floating or is_complex):
        return None
    left, right = specs[0], specs[1]
    batch = prod(left.shape[:-2])
    rows, depth, columns = left.shape[-2], left.shape[-1], right.shape[-1]
    dtype = left.dtype
    form = "batched" if name in ("bmm", "baddbmm") else "plain"
    plus = "+" if name in ("addmm", "baddbmm") else ""
    kind = f"{form} {_kind_of(dtype)} {_orientation(left)}{_orientation(right)} {plus}"
    # The longest rows of both operands and of the result: a vocabulary of 50,257 in the result alone rules out the fast
    # kernels.
    inner = (columns if _orientation(right) == "r" else depth, depth if _orientation(left) == "r" else rows)
    aligned = _alignment(*inner, columns)
    at = (
        _log(rows), _log(columns), 2 * _log(depth), _log(batch), *_tiles(rows, columns, batch),
        2 * _log(aligned),
    )  # fmt: skip
    group = f"{'batched' if batch > 1 else 'plain'} {_kind_of(dtype)} {_orientation(left)}{_orientation(right)}"
    tiling = Tiling((Product(group, rows, columns, depth, batch),), aligned)
    traits = (
        _type_number(dtype), float("rcs".index(_orientation(left)) * 3 + "rcs".index(_orientation(right))),
        float(plus != ""), float(form == "batched"), _log(depth), *_divisors(rows, columns, depth),
        _log(rows * columns * batch), log2(rows / columns), *_wholeness(rows, columns, batch),
    )  # fmt: skip
    # A product of complex numbers is four of real ones.
    flops = (8.0 if is_complex else 2.0) * batch * rows * columns * depth
    return Place("matmul", kind, at, flops, dtype, sizes=(rows, columns, depth), tiling=tiling, traits=traits)


def _grouped_matmul(name: str, signature: Signature) -> Place | None:
    """A batch of products of equal sizes by a kernel of its own: routing is assumed balanced. A 2-D operand has all
    groups side by side, and groups without a row are not computed."""
    if len(signature.inputs) < 2:
        return None
    left, right = signature.inputs[:2]
    given = len(left.shape), len(right.shape)
    (rows, depth), columns = left.shape[-2:], right.shape[-1]
    if given == (2, 3):
        groups = max(min(right.shape[0], rows), 1)
        rows = -(-rows // groups)
    elif given == (3, 2):
        groups = max(min(left.shape[0], columns), 1)
        columns = -(-columns // groups)
    elif given == (2, 2) and len(signature.outputs[0].shape) == 3:
        groups = max(min(signature.outputs[0].shape[0], depth), 1)
        depth = -(-depth // groups)
    else:
        return _matmul("bmm", signature)
    equal = (_matrices(left, groups, rows, depth), _matrices(right, groups, depth, columns))
    place = _matmul("bmm", replace(signature, inputs=equal))
    if place is None or place.tiling is None:
        return place
    kind = f"grouped {' '.join(place.kind.split()[1:])}"
    products = tuple(product._replace(group=kind) for product in place.tiling.products)
    return replace(place, family="grouped", kind=kind, tiling=replace(place.tiling, products=products))


def _matrices(spec: TensorSpec, count: int, rows: int, columns: int) -> TensorSpec:
    """So many matrices of this size, in the order of the last two dimensions of `spec`."""
    stride = (rows * columns, 1, rows) if _orientation(spec) == "c" else None
    return TensorSpec((count, rows, columns), spec.dtype, stride)


def _kind_of(dtype: str) -> str:
    """Types of 16 bits run on the same units at the same rate."""
    return "half" if dtype in _HALF_TYPES else dtype


def _is_channels_last(spec: TensorSpec) -> bool:
    if spec.stride is None or len(spec.shape) != 4:
        return False
    return spec.stride[1] == 1 and spec.shape[1] > 1 and spec.shape[2] * spec.shape[3] > 1


def _arrangement(spec: TensorSpec) -> float:
    """0 for channels first, 1 for channels last, 2 for a part of a larger tensor, which is copied before a
    convolution."""
    if spec.stride is None or len(spec.shape) < 2:
        return 0.0
    dims = range(len(spec.shape))
    for number, order in enumerate(([*dims], [0, *dims[2:], 1])):
        run, is_dense = 1, True
        for dim in reversed(order):
            is_dense &= spec.shape[dim] == 1 or spec.stride[dim] == run
            run *= spec.shape[dim]
        if is_dense:
            return float(number)
    return 2.0


def _convolution(name: str, signature: Signature) -> Place | None:
    inputs, attributes = signature.inputs, signature.attributes
    is_backward = name == "convolution_backward"
    specs = [spec for spec in inputs if len(spec.shape) >= 3]
    if len(specs) < (3 if is_backward else 2):
        return None
    grad = specs[0] if is_backward else None
    data, weight = (specs[1], specs[2]) if is_backward else (specs[0], specs[1])
    out = grad if grad is not None else signature.outputs[0]
    groups = int(attributes.get("groups", 1))
    is_transposed = bool(attributes.get("transposed", False))
    batch, channels, *sides = data.shape
    made = out.shape[1]
    kernel = prod(weight.shape[2:])
    pixels = batch * prod(out.shape[2:])
    stride = max((int(s) for s in _list(attributes.get("stride"))), default=1)
    depthwise = groups > 1 and groups == channels
    layout = "last" if _is_channels_last(data) or _is_channels_last(weight) else "first"
    shape = "depthwise" if depthwise else "grouped" if groups > 1 else "pointwise" if kernel == 1 else "full"
    if shape == "grouped" and any(width & (width - 1) for width in (channels // groups, made // groups)):
        # cuDNN has kernels for groups as wide as a power of two; others are up to twenty times slower on the H200.
        shape = "odd-grouped"
    mask = "".join("01"[bool(x)] for x in _list(attributes.get("output_mask"))) if is_backward else ""
    has_bias = mask[2:] == "1" if is_backward else len(inputs) > len(specs)
    mask = mask[:2]
    turned = " transposed" if is_transposed else ""
    # cuDNN has kernels for depthwise convolutions in float16, but not in bfloat16.
    type_name = data.dtype if depthwise else _kind_of(data.dtype)
    kind = f"{name[12:]}{mask} {len(sides)}d {shape} {type_name} {layout}{turned}"
    rows, columns, depth = pixels, made // groups, kernel * channels // groups
    _, wasted = _tiles(rows, columns, groups)
    # Weights of the coordinates: found on the H200's kernels, each left out in turn.
    at = (
        _log(pixels), _log(channels // groups), 2 * _log(made // groups), _log(groups), 8 * _log(kernel),
        6.0 * (stride > 1), _log(batch) / 4, wasted / 2, _log(_alignment(channels // groups, made // groups)),
        _log(_alignment(prod(sides))), has_bias * _BIAS_WEIGHT,
    )  # fmt: skip
    rate = "tf32" if data.dtype == "float32" else data.dtype
    if is_transposed:
        flops = 2.0 * prod(data.shape) * kernel * (made // groups)
    else:
        flops = 2.0 * pixels * made * kernel * (channels // groups)
    if is_backward:
        flops *= max(mask.count("1"), 1)
    group, each = f"{shape} {type_name} {layout}", channels // groups
    # A stride leaves out as much of a filter for each pixel of the larger image.
    skipped = prod(int(s) for s in _list(attributes.get("stride"))) or 1
    if is_transposed:
        # The gradient of a convolution's data, and its gradient is a convolution.
        forward = Product(f"gradient of data, {group}", rows, columns, max(depth // skipped, each), groups)
        of_data = Product(f"forward {group}", batch * prod(sides), each, kernel * columns, groups)
        of_weights = Product(f"gradient of weights, {group}", kernel * columns, each, batch * prod(sides), groups)
    else:
        forward = Product(f"forward {group}", rows, columns, depth, groups)
        seen = max(kernel * columns // skipped, columns)
        of_data = Product(f"gradient of data, {group}", batch * prod(sides), each, seen, groups)
        of_weights = Product(f"gradient of weights, {group}", depth, columns, rows, groups)
    products = [forward]
    if is_backward:
        products = [product for product, flag in zip((of_data, of_weights), mask, strict=False) if flag == "1"]
    tiling = Tiling(tuple(products), _alignment(each, columns), stride > 1)
    wide, padding = weight.shape[2:], [int(pad) for pad in _list(attributes.get("padding"))]
    dilation = max((int(d) for d in _list(attributes.get("dilation"))), default=1)
    shapes = ("depthwise", "odd-grouped", "grouped", "pointwise", "full")
    traits = (
        _type_number(data.dtype), float(shapes.index(shape)), float(layout == "last"),
        *(float(flag) for flag in (is_backward, mask[:1] == "1", mask[1:] == "1", has_bias)),
        float(is_transposed), float(len(sides)), _log(batch), _log(channels), _log(made), _log(each), _log(columns),
        _log(kernel), _log(max(wide)), _log(min(wide)), float(stride), float(max(padding, default=0)), float(dilation),
        _log(prod(sides)), float(sides[-1]), float(out.shape[-1]), _log(depth), float(each == columns),
        *(_log(1 << (size - 1).bit_length()) - _log(size) for size in (each, columns)),
        *_divisors(each, columns, channels, made, sides[-1], prod(sides), out.shape[-1]),
        *_wholeness(rows, columns, groups), *(_arrangement(spec) for spec in (data, weight, out)),
    )  # fmt: skip
    bias_s = 0.0
    if has_bias:
        fixed_s, element_s = _BIAS_SECONDS[is_backward, layout]
        bias_s = fixed_s + element_s * out.numel
    layout_s = 0.0
    if layout == "first" and shape not in ("depthwise", "pointwise"):
        passes = max(mask.count("1"), 1)
        elements = (data.numel + out.numel) * _LAYOUT_ELEMENT_S[data.dtype == "float32"]
        layout_s = passes * (_LAYOUT_LAUNCHES_S + elements + weight.numel * _LAYOUT_WEIGHT_S)
    return Place("convolution", kind, at, flops, rate, tiling=tiling, traits=traits, around_s=(bias_s, layout_s))


# torch adds a bias after cuDNN's convolution, in place, and sums up its gradient, each by a separate kernel (`add_` of
# aten/src/ATen/native/Convolution.cpp). Seconds of such a kernel and per element of the result, backward or not and by
# layout: fitted to what a profiler saw of 5,900 sums and 2,500 gradients on the H200, with 0.8 µs between kernels.
_BIAS_SECONDS = {
    (False, "first"): (2.7e-6, 2.6e-12),
    (False, "last"): (2.9e-6, 2.3e-12),
    (True, "first"): (5.3e-6, 2.2e-12),
    (True, "last"): (8.9e-6, 3.3e-12),
}
_BIAS_WEIGHT = 1.0  # of the coordinate: a convolution with a bias and one without are near each other
# With the channels first, cuDNN brings the data, the weights and the result of most convolutions to its kernels' layout
# and back, in each pass: three launches, seconds per element of data and result by whether they are float32, and per
# element of the weights. From the same profile: 6,000 convolutions, of which 88 % do.
_LAYOUT_LAUNCHES_S, _LAYOUT_ELEMENT_S, _LAYOUT_WEIGHT_S = 7e-6, (1.72e-12, 2.1e-12), 5.2e-12


def _list(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]


def _attention(name: str, signature: Signature) -> Place | None:
    specs = [spec for spec in signature.inputs if len(spec.shape) == 4]
    is_backward = name.endswith("_backward")
    if len(specs) < (4 if is_backward else 3):
        return None
    query, key, value = specs[1:4] if is_backward else specs[:3]
    is_masked = len(specs) > (6 if is_backward else 3) or any(
        spec.stride is not None and 0 in spec.stride for spec in specs
    )
    batch, heads, length, width = query.shape
    is_causal = bool(signature.attributes.get("is_causal"))
    kind = f"{name.replace('_scaled_dot_product_', '')} {_kind_of(query.dtype)}{' mask' if is_masked else ''}"
    padded, more_keys, idle = _attention_tiles(batch * heads, length, key.shape[2])
    # Weights of the coordinates: found on the H200's kernels, each left out in turn.
    at = (
        _log(batch * heads), 1.6 * _log(length), 1.6 * _log(key.shape[2]), 5.6 * _log(width), 1.6 * is_causal,
        3.75 * _log(heads // max(key.shape[1], 1)), 0.35 * bool(signature.attributes.get("compute_log_sumexp")),
        2 * min(idle, 1.0), padded / 2, more_keys / 2,
    )  # fmt: skip
    flops = 4.0 * batch * heads * length * key.shape[2] * (width + value.shape[-1]) / 2
    if is_causal:
        flops /= 2
    shared = heads // max(key.shape[1], 1)
    sizes = (batch * heads, length, key.shape[2], width, int(is_causal), shared)
    work = Attention(
        kind, batch * heads, length, key.shape[2], width, shared, query.itemsize, is_causal, is_masked, is_backward
    )
    work = replace(work, group=f"{kind} decoding") if work.is_decoding else work
    blocks: list[float] = []
    for tile in (64, 128, 256):
        count = batch * heads * -(-length // tile)
        filled = -(-count // _MULTIPROCESSORS) * _MULTIPROCESSORS / count
        blocks += [min(filled, 3.3), _log(count), *(-(-size // tile) * tile / size for size in (length, key.shape[2]))]
    libraries = ("cudnn", "flash", "efficient")
    library = next((place for place, known in enumerate(libraries) if known in name), len(libraries))
    traits = (
        _type_number(query.dtype), float(library), float(is_backward), float(is_causal), float(is_masked),
        float(shared), _log(batch), _log(heads), _log(length), _log(key.shape[2]), _log(width),
        *_divisors(length, key.shape[2], width), *(float(spec.stride is not None) for spec in specs[:3]),
        _log(batch * heads / shared), *blocks,
    )  # fmt: skip
    flops *= 2.5 if is_backward else 1.0
    waste = _WASTE_SHARE * (padded + more_keys + min(idle, 3.0))
    return Place("attention", kind, at, flops, query.dtype, waste=waste, sizes=sizes, work=work, traits=traits)


# Queries and keys that one block of an attention kernel takes; multiprocessors of the H200 that the tables are of.
_TILE, _MULTIPROCESSORS = 128, 132
# The part of the possible cost of a partly filled tile or wave that shows in the time (in octaves): blocks of other
# sizes, and work that is split along the keys. Found on the H200's kernels.
_WASTE_SHARE = 0.3


def _attention_tiles(rows: int, length: int, keys: int) -> tuple[float, float, float]:
    """In octaves: how much longer queries and keys are in whole tiles, and whole waves than what they hold."""
    tiles = rows * -(-length // _TILE)
    waves = -(-tiles // _MULTIPROCESSORS)
    whole = (-(-size // _TILE) * _TILE / size for size in (length, keys))
    queries, more_keys = (log2(part) for part in whole)
    return queries, more_keys, log2(waves * _MULTIPROCESSORS / tiles)


def _recurrent(name: str, signature: Signature) -> Place | None:
    attributes = signature.attributes
    data = signature.inputs[0]
    if len(data.shape) != 3:
        return None
    steps, batch, features = data.shape
    if attributes.get("batch_first"):
        steps, batch = batch, steps
    units, layers = int(attributes["hidden_size"]), int(attributes["num_layers"])
    directions = 2 if attributes.get("bidirectional") else 1
    mode, is_backward = int(attributes.get("mode", 0)), "backward" in name
    gates = {_LSTM: 4, _GRU: 3}.get(mode, 1)
    work = Recurrence(
        "", steps, layers, directions, batch, features, units, gates, data.itemsize, is_backward,
        bool(attributes.get("train")) and not is_backward,
    )  # fmt: skip
    algorithm = recurrent_algorithm(work, mode, data.dtype)
    kind = f"{name} {_kind_of(data.dtype)} {algorithm}"
    # Weights of the coordinates: found on the H200's kernels, each left out in turn. All steps take the same time.
    at = (
        0.2 * _log(steps), 0.6 * _log(batch), 0.3 * _log(features), 1.6 * _log(units), 0.5 * _log(layers),
        2 * _log(directions), 0.3 * (gates == 4), 0.2 * bool(attributes.get("train")),
    )  # fmt: skip
    each = 2.0 * steps * batch * gates * units * directions
    flops = each * (features + units) + each * (layers - 1) * (units * directions + units)
    rate = "tf32" if data.dtype == "float32" else data.dtype  # cuDNN may use it, as torch sets the switches
    # The standard algorithm launches its steps one after the other, the others a layer.
    launches = layers * directions * (steps if algorithm == "standard" else 1)
    sizes, work = (steps, layers, directions), replace(work, group=kind)
    algorithms = ("small", "spilled", "persistent", "standard")
    traits = (
        _type_number(data.dtype), float(algorithms.index(algorithm)), float(is_backward), float(work.keeps_state),
        float(gates), _log(steps), float(layers), float(directions), _log(batch), _log(features), _log(units),
        *_divisors(batch, units, features), float(features == units), _log(units * batch),
    )  # fmt: skip
    flops *= 2 if is_backward else 1
    return Place("recurrent", kind, at, flops, rate, launches=launches, sizes=sizes, work=work, traits=traits)


_LSTM, _GRU = 2, 3  # modes of cuDNN; 0 and 1 are plain layers


def recurrent_algorithm(work: Recurrence, mode: int, dtype: str) -> str:
    """The algorithm of cuDNN that torch asks for (`get_algo` of aten/src/ATen/native/cudnn/RNN.cpp). A layer of few
    units stays in one multiprocessor from step to step; one that is too large for that, but still asked for so, is far
    slower ("spilled", seen on the H200)."""
    is_gated = mode in (_LSTM, _GRU)
    most_units = (128 if work.is_backward else 192) if is_gated else (256 if work.is_backward else 384)
    if dtype != "bfloat16" and work.units <= most_units:
        return "small" if work.gates * work.units**2 <= 65536 else "spilled"
    is_single = work.layers == work.directions == 1 and work.units <= 1024
    is_aligned = work.units % 128 == 0 and work.features % 128 == 0 and work.batch % 8 == 0
    fits = work.batch <= 128 and mode != _GRU and (mode == _LSTM or work.batch < 96 or work.units < 896)
    return "persistent" if dtype == "float16" and is_single and is_aligned and fits else "standard"


def _inner_run(spec: TensorSpec) -> int:
    """Elements that follow each other in memory along the innermost dimensions, as the tensor is read in order."""
    strides = spec.stride or contiguous_stride(spec.shape)
    run = 1
    for size, stride in zip(reversed(spec.shape), reversed(strides), strict=True):
        if size == 1:
            continue
        if stride != run:
            break
        run *= size
    return run


def _order(spec: TensorSpec) -> tuple[int, ...]:
    """Dimensions from the widest stride to the narrowest, those of one element and repeated ones left out."""
    if spec.stride is None:
        return ()
    dims = [d for d in range(len(spec.shape)) if spec.shape[d] > 1 and spec.stride[d] > 0]
    order = tuple(sorted(dims, key=lambda d: -spec.stride[d]))  # type: ignore[index]
    return () if order == tuple(dims) else order


# Kinds of streamed kernels as trees see them, by the beginnings of names; elementwise ops come after all of these.
_CLASSES = (
    ("native_batch_norm",), ("native_group_norm",), ("native_layer_norm", "_fused_rms_norm", "_weight_norm"),
    ("upsample_nearest", "_upsample_nearest"), ("upsample_", "_upsample_"), ("grid_sampler", "affine_grid"),
    ("max_pool",), ("avg_pool",), ("adaptive_", "_adaptive_"), ("im2col", "col2im"),
    ("reflection_pad", "replication_pad", "constant_pad"), ("_softmax", "_log_softmax", "_safe_softmax"),
    ("cum", "logcumsumexp", "_cum"),
    ("sum", "mean", "amax", "amin", "max", "min", "arg", "var", "std", "norm", "linalg_vector_norm", "prod", "any",
     "all"),
    ("sort", "topk", "kthvalue", "median"),
    ("embedding_dense_backward", "_embedding_bag_backward", "_embedding_bag_per"),
    ("embedding", "_embedding_bag", "index_select"),
    ("index_put", "index_add", "index_copy", "index_reduce", "scatter"), ("index", "gather", "take"), ("nll_loss",),
    ("_fft",), ("cat", "stack"),
    ("clone", "copy", "_to_copy", "roll", "flip", "repeat", "pixel_", "channel_shuffle"), ("_foreach", "_fused"),
    ("bernoulli", "native_dropout", "rand", "normal", "uniform"), ("_thnn",),
)  # fmt: skip
_IMAGE_CLASSES = frozenset(range(3, 11))  # those that go over the pixels of planes
_BICUBIC = 2  # the mode of `grid_sampler`
_ALONG_CLASSES = frozenset(range(11, 15))  # those that work along one dimension
_TABLE_CLASSES = frozenset(range(15, 19))  # those that read rows of a table or add to them


@cache
def _class_of(name: str) -> int:
    return next((place for place, starts in enumerate(_CLASSES) if name.startswith(starts)), len(_CLASSES))


def _spans(name: str, group: int, signature: Signature) -> tuple[int, int, int]:
    """Sizes that a streamed kernel divides among its threads: outside, along and inside the dimension that it works on.
    For norms of channels the batch, the channels and a channel's pixels; for groups their number and elements."""
    inputs, outputs, attributes = signature.inputs, signature.outputs, signature.attributes
    if not inputs or not outputs:
        return 1, 1, 1
    shape = inputs[0].shape
    if group == 0:
        return shape[0], shape[1] if len(shape) > 1 else 1, prod(shape[2:])
    if group == 1:
        sums = outputs[1] if not name.endswith("backward") else inputs[2] if len(inputs) > 2 else outputs[0]
        return sums.numel, inputs[0].numel // max(sums.numel, 1), 1
    if group == 2:
        width = prod(int(size) for size in _list(attributes.get("normalized_shape")))
        return inputs[0].numel // max(width, 1), width, 1
    if group in _IMAGE_CLASSES:
        return _planes(name, inputs[0].shape, outputs[0].shape)
    if name in ("cat", "stack") and len(outputs[0].shape) > 4:  # one tensor is copied after the other
        return len(inputs), outputs[0].numel, 1
    if name.startswith("nll_loss"):
        return 1, max((spec.numel for spec in inputs if spec.dtype == "int64"), default=1), 1
    if group in _TABLE_CLASSES:
        return _rows_moved(name, signature)
    dims = [dim % len(shape) for dim in _list(attributes.get("dim")) if isinstance(dim, int) and shape]
    if dims:
        low, high = min(dims), max(dims)
        return prod(shape[:low]), prod(shape[low : high + 1]), prod(shape[high + 1 :])
    return 1, inputs[0].numel // max(outputs[0].numel, 1) or 1, 1


def _planes(name: str, given: tuple[int, ...], made: tuple[int, ...]) -> tuple[int, int, int]:
    """How a kernel processes images: the serial steps of one thread, the number of threads, and 1. Those of
    aten/src/ATen/native/cuda (UpSample*.cu, GridSampler.cu, Im2Col.cu) differ in the work of one thread: all planes of
    a pixel, all its samples, all its channels; a gradient also adds up the pixels that a pixel was spread to. `im2col`
    is launched for each sample. Other kernels have a thread for each pixel of each plane."""
    made, given = ((1,) * (2 - len(shape)) + shape for shape in (made, given))  # a vector can be padded too
    batch, channels, here, there = made[0], made[1], prod(made[2:]), prod(given[2:])
    spread = max(there // max(here, 1), 1)
    if name.startswith("grid_sampler"):
        return channels, batch * max(there if name.endswith("backward") else here, 1), 1
    if name == "im2col":
        return batch, channels * here, 1
    if "upsample_nearest" in name and name.endswith("backward"):
        return batch * spread, channels * here, 1
    if "upsample_nearest" in name and "2d" not in name:
        return batch, channels * here, 1
    if "upsample" in name and "_aa" not in name:
        if name == "upsample_bilinear2d_backward":
            return spread, batch * channels * here, 1
        is_backward = name.endswith("backward")
        return batch * channels * (spread if is_backward else 1), there if is_backward else here, 1
    return batch * channels, here, 1


def _rows_moved(name: str, signature: Signature) -> tuple[int, int, int]:
    """For rows that are read from a table: their number, 1 and their width. For rows that are added to a table: how
    many meet in one row of the result, which a thread adds one by one; the number of threads; and 1."""
    made, tensors = signature.outputs[0], signature.inputs
    count = max((spec.numel for spec in tensors if spec.dtype in ("int64", "int32")), default=1) or 1
    if "bag" in name or "backward" in name:
        width = made.shape[-1] if len(made.shape) > 1 else 1
    elif name.startswith(("index_put", "index_add", "index_copy", "index_reduce", "scatter")):
        width = max((spec.numel for spec in tensors[1:] if spec.dtype == made.dtype), default=count) // count
    else:
        return count, 1, max(made.numel // count, 1)
    rows = max(made.numel // max(width, 1), 1)
    return -(-count // rows), min(rows, count) * max(width, 1), 1


_NUMBER = TensorSpec(())
_NO_DIMENSION = -9  # in place of the dimension, to trees, where an op has none


def _merged_loops(result: TensorSpec, inputs: Sequence[TensorSpec]) -> tuple[float, ...]:
    """How an elementwise kernel iterates over its tensors (torch's TensorIterator): loops that are left after merging
    those that are adjacent in all tensors, elements of the two innermost ones, whether one loop over adjacent elements
    is all (then a thread loads several at a time), inputs that are repeated, tensors whose innermost elements are
    apart, and what divides the innermost loop."""
    rows: list[list[int]] = []
    for spec in (result, *inputs):
        missing = len(result.shape) - len(spec.shape)
        if missing >= 0 and all(a in (1, b) for a, b in zip(spec.shape, result.shape[missing:], strict=True)):
            strides = zip(spec.shape, spec.stride or contiguous_stride(spec.shape), strict=True)
            rows.append([0] * missing + [0 if size == 1 else stride for size, stride in strides])
    loops: list[tuple[int, list[int]]] = []
    dims = (dim for dim in range(len(result.shape)) if result.shape[dim] > 1)
    for dim in sorted(dims, key=lambda dim: (rows[0][dim], -dim)):
        strides_here = [row[dim] for row in rows]
        size, inner = loops[-1] if loops else (0, [])
        if size and strides_here == [stride * size for stride in inner]:
            loops[-1] = size * result.shape[dim], inner
        else:
            loops.append((result.shape[dim], strides_here))
    (first, inner), second = loops[0] if loops else (1, []), loops[1][0] if len(loops) > 1 else 1
    is_one_run = len(loops) <= 1 and all(stride in (0, 1) for stride in inner)
    repeated = sum(any(strides[place] == 0 for _, strides in loops) for place in range(1, len(rows)))
    apart = sum(stride not in (0, 1) for stride in inner)
    return (
        float(len(loops)),
        _log(first),
        _log(second),
        float(is_one_run),
        float(repeated),
        float(apart),
        *_divisors(first),
    )


def _streamed(name: str, signature: Signature) -> tuple[str, tuple[float, ...], tuple[float, ...], Streaming]:
    """Ops that read and write their tensors once: pointwise, copies, reductions, norms, softmax, pooling, indexing."""
    inputs, outputs, attributes = signature.inputs, signature.outputs, signature.attributes
    tensors = [*inputs, *outputs]
    large = max(tensors, key=lambda spec: spec.numel, default=TensorSpec(()))
    big = [spec for spec in tensors if spec.numel * 4 >= large.numel]
    orders = {_order(spec) for spec in big if len(spec.shape) == len(large.shape)}
    runs = [_inner_run(spec) for spec in big]
    run = min(runs, default=1)
    mixed = "mixed" if len(orders) > 1 else ""
    mode = "train" if attributes.get("training") or attributes.get("train") else ""
    widths = "".join(str(spec.itemsize) for spec in big[:3])
    # Sums, means and maxima of bags are different kernels, and so is bicubic sampling.
    if "embedding_bag" in name:
        mode = f"mode{attributes.get('mode', 0)}"
    elif attributes.get("interpolation_mode") == _BICUBIC:
        mode = "bicubic"
    kind = f"{name} {widths} {mixed} {mode}"
    group = _class_of(name)
    # For images the memory format decides which kernel runs, also for a slice of a larger tensor.
    spec = inputs[0] if group in _IMAGE_CLASSES and inputs else large
    is_last = spec.stride is not None and len(spec.shape) > 2 and spec.shape[1] > 1 and spec.stride[1] == 1
    layout = "last" if is_last and prod(spec.shape[2:]) > 1 else "first"
    if group in _IMAGE_CLASSES:
        kind += f" {layout}"
    if group == 0 and inputs:
        # cuDNN runs those with weights and at least three dimensions, except in bfloat16 (`_select_batch_norm_backend`
        # of aten/src/ATen/native/Normalization.cpp).
        is_affine = any(len(spec.shape) == 1 and spec.dtype != "float32" for spec in inputs) or len(inputs) > 3
        kind += f" {large.dtype} {'affine' if is_affine else ''} {'rows' if len(large.shape) == 2 else ''}"
    # Of a table, only the rows that are read count.
    read = signature.cost.bytes_read or sum(spec.distinct_bytes for spec in inputs)
    written = signature.cost.bytes_written or sum(spec.distinct_bytes for spec in outputs)
    last = large.shape[-1] if large.shape else 1
    outer, middle, inner = _spans(name, group, signature)
    made = outputs[0].numel if outputs else 1
    at = (
        _log(read), _log(written), min(_log(run), 12.0) / 2, min(_log(last), 12.0) / 2, _log(outer) / 2, _log(middle),
        _log(inner) / 2, _log(len(inputs)) / 2, _log(made) / 2,
    )  # fmt: skip
    shape = large.shape
    blocks = max(outer, 1), max(middle, 1), max(outer * inner, 1)
    # The first two inputs and the result; a tensor of one element where there are fewer.
    few = [*inputs[:2], *[_NUMBER] * (2 - len(inputs[:2])), outputs[0] if outputs else _NUMBER]
    given, wanted = few[0].shape or (1,), few[2].shape or (1,)
    sides = [shape[dim] if len(shape) > dim else 1 for shape, dim in ((given, 2), (given, 3), (wanted, 0), (wanted, 1))]
    traits = (
        float(group), float(name.endswith("backward")), float(mode != ""), float(mixed != ""),
        _type_number(large.dtype), float(large.itemsize), float(len(shape)), float(len(inputs)), _log(outer),
        _log(inner), _log(outer * inner), _log(outer * middle), _log(large.numel), _log(made),
        _log(inputs[0].numel if inputs else 1), _log(shape[0] if shape else 1),
        _log(shape[1] if len(shape) > 1 else 1), _log(last), _log(max(runs, default=1)),
        _log(runs[0] if runs else 1), float(_arrangement(large)), float(_arrangement(inputs[0]) if inputs else 0.0),
        _log(prod(int(size) for size in _list(attributes.get("kernel_size")) if isinstance(size, int))),
        *(min(-(-count // _MULTIPROCESSORS) * _MULTIPROCESSORS / count, 8.0) for count in blocks),
        *_merged_loops(outputs[0] if outputs else large, inputs[:3]), *(_log(size) for size in sides),
        *_divisors(given[-1], wanted[-1]), *(_log(_inner_run(spec)) for spec in few),
        *(float(spec.itemsize) for spec in few), _log(min((spec.numel for spec in inputs), default=1)),
        float(next((dim for dim in _list(attributes.get("dim")) if isinstance(dim, int)), _NO_DIMENSION)),
        float(outputs[1].numel if len(outputs) > 1 else -1),
    )  # fmt: skip
    # A group of the plain model: the class first, then what distinguishes its kernels. Along the innermost dimension a
    # block takes a row, along others a thread takes a column.
    is_copy = name.startswith(("upsample_bilinear", "upsample_nearest")) and inputs[0].shape == outputs[0].shape
    way = "across" if group in _ALONG_CLASSES and inner > 1 else "copy" if is_copy else ""
    label = f"{group} {name} {layout} {mode} {kind.partition(f'{mixed} {mode} ')[2] if group == 0 else way}".rstrip()
    return kind, at, traits, Streaming(label, outer, middle, inner, large.numel, float(signature.cost.flops))


_FAMILIES: dict[str, Callable[[str, Signature], Place | None]] = {
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm", "_scaled_mm"), _matmul),
    **dict.fromkeys(("_grouped_mm", "_scaled_grouped_mm"), _grouped_matmul),
    **dict.fromkeys(("convolution", "convolution_backward"), _convolution),
    **{
        f"_scaled_dot_product_{kind}_attention{end}": _attention
        for kind in ("cudnn", "flash", "efficient")
        for end in ("", "_backward", "_for_cpu", "_for_cpu_backward")
    },
    **dict.fromkeys(("_cudnn_rnn", "_cudnn_rnn_backward"), _recurrent),
}
