"""Shape rules for ops whose meta kernel is slow or missing; torch's own kernels are the fallback.

A rule returns None where it does not apply. It reports no errors: arguments that look wrong are left to torch's own
kernel, for torch's message. Results are `Spec`s (or tuples of them), as the output of the real kernel would have them,
strides included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from torchgauge.capture.fake_tensor import FakeTensor, Spec, Specs, dtype_name, meta_tensor
from torchgauge.capture.op_call import Arguments
from torchgauge.facts.tensor import contiguous_stride, is_contiguous
from torchgauge.registry import Registry

# One output, or several in order; None for one that the op leaves out, or where the rule does not know.
Result: TypeAlias = "Spec | Sequence[Result] | None"
Rule = Callable[[Arguments, Specs], Result]

RULES: Registry[str, Rule] = Registry("shape rule for")
shape_rule = RULES.register


def find_rule(op: str, tags: frozenset[str]) -> Rule | None:
    """The rule of an op; elementwise ops share two."""
    rule = RULES.get(op)
    if rule is not None or "pointwise" not in tags:
        return rule
    if op in _COMPARISONS:
        return compare
    return None if op in _OTHER_TYPES or op.endswith("_out") else same_type


# Memory layouts: which strides an output takes.


def is_dense(spec: Spec) -> bool:
    """Non-overlapping and without gaps, in any order of dimensions."""
    expected = 1
    for step, size in sorted(zip(spec.stride, spec.shape, strict=True)):
        if size == 1:
            continue
        if size == 0 or step != expected:
            return False
        expected *= size
    return True


def is_channels_last(spec: Spec) -> bool:
    """Images or volumes that torch takes for channels_last: strides in that order, gaps allowed."""
    rank = len(spec.shape)
    if rank not in (4, 5) or spec.stride[1] == 0 or 0 in spec.shape:
        return False
    least = 0
    for dim in (1, *range(rank - 1, 1, -1), 0):
        # With one channel and one pixel both layouts fit, and torch prefers the contiguous one.
        if spec.stride[dim] < least or (dim == 0 and least == spec.stride[1]):
            return False
        least = spec.stride[dim] * spec.shape[dim]
    return True


def channels_last_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    moved = contiguous_stride((shape[0], *shape[2:], shape[1]))
    return (moved[0], moved[-1], *moved[1:-1])


def preserved_stride(spec: Spec) -> tuple[int, ...] | None:
    """The strides of a new tensor that keeps the order of dimensions; None where the order is ambiguous."""
    if is_dense(spec):
        return spec.stride
    sized = [step for step, size in zip(spec.stride, spec.shape, strict=True) if size != 1]
    if 0 in spec.stride or 0 in spec.shape or len(set(sized)) < len(sized):
        return None
    stride, expected = list(spec.stride), 1
    # Dimensions of size 1 sort by their stride as well, later ones inside earlier ones.
    for dim in sorted(range(len(spec.shape)), key=lambda i: (spec.stride[i], -i)):
        stride[dim] = expected
        expected *= spec.shape[dim]
    return tuple(stride)


# Convolutions, pooling, resizing, normalization and recurrent layers.


# Traces have the second one. In CUDA builds of torch its own kernel queries the CUDA devices, which the isolated reader
# of files may not do.
@shape_rule("aten::convolution", "aten::_convolution")
def convolution(arguments: Arguments, specs: Specs) -> Spec | None:
    image, weight, bias = arguments["input"].spec, arguments["weight"].spec, arguments["bias"]
    groups = arguments["groups"]
    rank = len(weight.shape) - 2
    if len(image.shape) != rank + 2 or image.dtype is not weight.dtype or 0 in image.shape:
        return None
    transposed = arguments["transposed"]
    channels_in = weight.shape[0] if transposed else weight.shape[1] * groups
    channels_out = weight.shape[1] * groups if transposed else weight.shape[0]
    if image.shape[1] != channels_in or channels_out % groups:
        return None
    if bias is not None and (bias.spec.shape != (channels_out,) or bias.spec.dtype is not image.dtype):
        return None
    given = (arguments[name] for name in ("stride", "padding", "dilation", "output_padding"))
    per_dim = zip(*(values * rank if len(values) == 1 else values for values in given), strict=True)
    sizes = zip(image.shape[2:], weight.shape[2:], per_dim, strict=True)
    if transposed:
        space = tuple((n - 1) * s - 2 * p + d * (k - 1) + extra + 1 for n, k, (s, p, d, extra) in sizes)
    else:
        space = tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, (s, p, d, _) in sizes)
    if any(size <= 0 for size in space):
        return None
    shape = (image.shape[0], channels_out, *space)
    last = is_channels_last(image) or is_channels_last(weight)
    stride = channels_last_stride(shape) if last else contiguous_stride(shape)
    return specs.get(shape, stride, image.dtype, image.device)


@shape_rule("aten::max_pool2d_with_indices", "aten::avg_pool2d")
def pool(arguments: Arguments, specs: Specs) -> Result:
    """Layouts and paddings that are unusual are left to torch."""
    x, has_indices = arguments["self"].spec, "dilation" in arguments
    if len(x.shape) not in (3, 4) or not is_contiguous(x.shape, x.stride) or 0 in x.shape:
        return None
    kernel = _pair(arguments["kernel_size"])
    stride, padding = _pair(arguments["stride"] or kernel), _pair(arguments["padding"])
    dilation = _pair(arguments["dilation"]) if has_indices else [1, 1]
    if any(2 * p > k for p, k in zip(padding, kernel, strict=True)):
        return None
    sizes = []
    for n, k, s, p, d in zip(x.shape[-2:], kernel, stride, padding, dilation, strict=True):
        span = n + 2 * p - d * (k - 1) - 1
        size = span // s + 1
        if arguments["ceil_mode"]:
            size = -(-span // s) + 1
            # A window that would start in the padding after the input is dropped.
            size -= (size - 1) * s >= n + p
        sizes.append(size)
    if min(sizes) <= 0:
        return None
    shape = (*x.shape[:-2], *sizes)
    pooled = specs.contiguous(shape, x.dtype, x.device)
    return (pooled, specs.contiguous(shape, torch.int64, x.device)) if has_indices else pooled


def _pair(values: list[int]) -> list[int]:
    return list(values) * 2 if len(values) == 1 else list(values)


_MODES = ("nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d", "trilinear3d", "bicubic2d")


@shape_rule(
    *(f"aten::upsample_{mode}" for mode in _MODES), "aten::_upsample_bilinear2d_aa", "aten::_upsample_bicubic2d_aa"
)
def upsample(arguments: Arguments, specs: Specs) -> Spec | None:
    x, size = arguments.get("self"), arguments.get("output_size")
    if x is None or size is None or len(x.spec.shape) != len(size) + 2 or min(size) <= 0 or 0 in x.spec.shape:
        return None
    shape = (*x.spec.shape[:2], *size)
    last = is_channels_last(x.spec)
    stride = channels_last_stride(shape) if last else contiguous_stride(shape)
    return specs.get(shape, stride, x.spec.dtype, x.spec.device)


_HALF_TYPES = (torch.float16, torch.bfloat16)


@shape_rule("aten::native_batch_norm", "aten::_native_batch_norm_legit", "aten::_native_batch_norm_legit_no_training")
def batch_norm(arguments: Arguments, specs: Specs) -> Result:
    x = arguments["input"].spec
    if len(x.shape) < 2 or x.dtype in _HALF_TYPES or not is_dense(x):
        return None
    vectors = [arguments.get(name) for name in ("weight", "bias", "running_mean", "running_var")]
    if any(v is not None and (v.spec.shape != (x.shape[1],) or v.spec.dtype is not x.dtype) for v in vectors):
        return None
    saved = x.shape[1] if arguments.get("training") else 0
    statistics = specs.get((saved,), (1,), x.dtype, x.device)
    return x, statistics, statistics


@shape_rule("aten::native_layer_norm")
def layer_norm(arguments: Arguments, specs: Specs) -> Result:
    x, normalized = arguments["input"].spec, tuple(arguments["normalized_shape"])
    count = len(normalized)
    if x.dtype in _HALF_TYPES or x.shape[len(x.shape) - count :] != normalized or x.device.type != "cpu":
        return None
    for name in ("weight", "bias"):
        if arguments[name] is not None and arguments[name].spec.shape != normalized:
            return None
        if arguments[name] is not None and arguments[name].spec.dtype is not x.dtype:
            return None
    reduced = (*x.shape[: len(x.shape) - count], *[1] * count)
    statistics = specs.contiguous(reduced, x.dtype, x.device)
    return _dense(x, specs), statistics, statistics


_PAGE_BYTES = 4096


@shape_rule("aten::mkldnn_rnn_layer")
def mkldnn_layer(arguments: Arguments, specs: Specs) -> Result:
    """One direction of one layer; the input comes time first. A workspace is made for training alone."""
    x, hidden, cell = arguments["input"].spec, arguments["hx_"].spec, arguments["cx_"].spec
    if len(x.shape) != 3:
        return None
    steps, batch, features = x.shape
    units = int(arguments["hidden_size"])
    shape = (*x.shape[:-1], units)
    out = specs.contiguous(shape, x.dtype, x.device)
    if not arguments["train"]:
        return out, hidden, cell, None
    size = (workspace_bytes(steps, batch, features, units, x.record.itemsize),)
    return out, hidden, cell, specs.get(size, (1,), torch.uint8, x.device)


def workspace_bytes(steps: int, batch: int, features: int, units: int, itemsize: int) -> int:
    """The workspace that oneDNN keeps of an LSTM layer for its backward pass (`set_workspace_sizes` of its rnn_utils):
    the gates and the outputs of each step; for the two ends of the layer, the states of every step and room for their
    gradients. Each part starts a page; rows are padded to 64 bytes, and further where they would be 1 KiB apart."""

    def padded(length: int) -> int:
        aligned = -(-length * itemsize // 64) * 64 // itemsize
        return aligned + 64 // itemsize if aligned % 256 == 0 else aligned

    states = 2 * (steps + 1) * batch
    widest = padded(max(features, units))
    parts = [steps * batch * padded(4 * units), steps * batch * padded(units), *3 * [states * widest]]
    parts += 2 * [states * units]
    return sum(-(-part * itemsize // _PAGE_BYTES) * _PAGE_BYTES for part in parts)


@shape_rule("aten::_cudnn_rnn")
def cudnn(arguments: Arguments, specs: Specs) -> Result:
    """All layers at once. The last result is the buffer of all weights: torch's meta kernel returns the one it was
    given, even if that is None, but the backward pass needs a tensor. A model on the device has its weights in one
    buffer from the start, so it takes no memory here."""
    x, hidden, cell = arguments["input"].spec, arguments["hx"].spec, arguments["cx"]
    directions = 2 if arguments["bidirectional"] else 1
    width = int(arguments["proj_size"] or arguments["hidden_size"]) * directions
    shape = (*x.shape[:-1], width)
    none = specs.get((0,), (1,), x.dtype, x.device)
    buffer = none if arguments["weight_buf"] is None else arguments["weight_buf"].spec
    out = specs.contiguous(shape, x.dtype, x.device)
    reserve = specs.get((0,), (1,), torch.uint8, x.device)
    return out, _dense(hidden, specs), none if cell is None else _dense(cell.spec, specs), reserve, buffer


@shape_rule("aten::_cudnn_rnn_backward")
def cudnn_backward(arguments: Arguments, specs: Specs) -> Result:
    x, cell, wanted = arguments["input"].spec, arguments["cx"], arguments["output_mask"]
    return (
        _dense(x, specs) if wanted[0] else None,
        _dense(arguments["hx"].spec, specs) if wanted[1] else None,
        _dense(cell.spec, specs) if wanted[2] and cell is not None else None,
        [_dense(weight.spec, specs) for weight in arguments["weight"]] if wanted[3] else [],
    )


def _dense(spec: Spec, specs: Specs) -> Spec:
    return specs.contiguous(spec.shape, spec.dtype, spec.device)


# Matrix products.


@shape_rule("aten::mm", "aten::bmm")
def product(arguments: Arguments, specs: Specs) -> Spec | None:
    return _product(arguments["self"].spec, arguments["mat2"].spec, specs)


@shape_rule("aten::addmm", "aten::_addmm_activation", "aten::baddbmm")
def addmm(arguments: Arguments, specs: Specs) -> Spec | None:
    bias = arguments["self"].spec
    left, right = ("mat1", "mat2") if "mat1" in arguments else ("batch1", "batch2")
    out = _product(arguments[left].spec, arguments[right].spec, specs)
    if out is None or bias.dtype is not out.dtype or len(bias.shape) > len(out.shape):
        return None
    expands = all(a in (1, b) for a, b in zip(reversed(bias.shape), reversed(out.shape), strict=False))
    return out if expands else None


@shape_rule("aten::_scaled_mm", "aten::_scaled_mm_v2")
def scaled_product(arguments: Arguments, specs: Specs) -> Spec | None:
    """For numbers packed in pairs: torch's meta kernel expects the scales of half the columns of MXFP4."""
    left, right = arguments["self"].spec, arguments["mat2"].spec
    if not dtype_name(left.dtype).endswith("_x2") or left.shape[-1] != right.shape[-2]:
        return None
    shape = (left.shape[0], right.shape[1])
    return specs.contiguous(shape, arguments["out_dtype"] or torch.bfloat16, left.device)


def _product(left: Spec, right: Spec, specs: Specs) -> Spec | None:
    fits = (
        len(left.shape) == len(right.shape)
        and left.dtype is right.dtype
        and left.shape[-1] == right.shape[-2]
        and left.shape[:-2] == right.shape[:-2]
        and left.device == right.device
    )
    if not fits:
        return None
    shape = (*left.shape[:-1], right.shape[-1])
    return specs.contiguous(shape, left.dtype, left.device)


@shape_rule("aten::_grouped_mm")
def grouped(arguments: Arguments, specs: Specs) -> Spec | None:
    """Rows in groups against one matrix per group, and the products of its backward pass: a matrix per group against
    columns in groups, and two operands whose inner dimension is in groups. torch's meta kernel refuses types that its
    CPU kernel takes."""
    left, right, ends = arguments["self"].spec, arguments["mat2"].spec, arguments["offs"]
    dims = len(left.shape), len(right.shape)
    if left.shape[-1] != right.shape[-2] or left.dtype is not right.dtype or ends is None or 2 not in dims:
        return None
    groups = (ends.spec.shape[0],) if dims == (2, 2) else ()
    shape = (*groups, left.shape[-2], right.shape[-1])
    return specs.contiguous(shape, arguments["out_dtype"] or left.dtype, left.device)


# Attention kernels. Those of the fast paths of `nn.MultiheadAttention` and its encoder layer have no meta kernel.


@shape_rule("aten::_scaled_dot_product_flash_attention_for_cpu")
def flash_on_cpu(arguments: Arguments, specs: Specs) -> Result:
    query = arguments["query"].spec
    batch, heads, length, _ = query.shape
    stride = preserved_stride(query)
    if stride is None:
        return None
    out = specs.get(query.shape, stride, query.dtype, query.device)
    dtype = torch.float64 if query.dtype is torch.float64 else torch.float32
    # Kept as (batch, length, heads) and handed out transposed.
    return out, specs.get((batch, heads, length), (length * heads, 1, heads), dtype, query.device)


@shape_rule("aten::_native_multi_head_attention")
def multi_head(arguments: Arguments, specs: Specs) -> Result:
    query, key = arguments["query"].spec, arguments["key"].spec
    batch, length, _ = query.shape
    out = _dense(query, specs)
    if not arguments["need_weights"]:
        return out, None
    heads = () if arguments["average_attn_weights"] else (arguments["num_head"],)
    shape = (batch, *heads, length, key.shape[1])
    return out, specs.contiguous(shape, query.dtype, query.device)


@shape_rule("aten::_transformer_encoder_layer_fwd")
def encoder_layer(arguments: Arguments, specs: Specs) -> Spec:
    return _dense(arguments["src"].spec, specs)


@shape_rule("higher_order::flex_attention")
def flex(arguments: Arguments, specs: Specs) -> Result:
    query, value = arguments["query"].spec, arguments["value"].spec
    shape = (*query.shape[:-1], value.shape[-1])
    rows = query.shape[:-1]
    sums = specs.contiguous(rows, torch.float32, query.device)
    return specs.contiguous(shape, query.dtype, query.device), sums, sums


@shape_rule("higher_order::flex_attention_backward")
def flex_backward(arguments: Arguments, specs: Specs) -> Result:
    """Gradients of query, key and value, and of the tensors that the score function reads."""

    def like(item: object) -> Spec | None:
        return _dense(item.spec, specs) if isinstance(item, FakeTensor) else None

    made = tuple(like(arguments[name]) for name in ("query", "key", "value"))
    return (*made, tuple(map(like, arguments["score_mod_other_buffers"])))


# Elementwise ops on floating tensors of one type (mixed types are left to torch's promotion), reductions, copies.

_COMPARISONS = frozenset(
    f"aten::{name}"
    for name in (
        "eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "logical_not", "logical_and", "logical_or",
    )
)  # fmt: skip
# Results of another type than the inputs, or with a type argument.
_OTHER_TYPES = frozenset(
    f"aten::{name}"
    for name in (
        "signbit", "isposinf", "isneginf", "isreal", "logical_xor", "frexp", "angle", "real", "imag", "polar",
        "complex", "view_as_complex", "bitwise_not", "equal", "_to_copy", "sgn", "nan_to_num", "float_power",
        "special_zeta", "copy", "copy_",
    )
)  # fmt: skip


@shape_rule("aten::masked_fill", "aten::masked_fill_")
def masked_fill(arguments: Arguments, specs: Specs) -> Spec | None:
    x, mask = arguments["self"].spec, arguments["mask"].spec
    if isinstance(arguments["value"], FakeTensor) or mask.dtype is not torch.bool:
        return None
    shape = _broadcast_shape([x.shape, mask.shape])
    # The kernel copies to a contiguous tensor first, whatever the layout was.
    return None if shape is None else specs.contiguous(shape, x.dtype, x.device)


@shape_rule("aten::where")
def where(arguments: Arguments, specs: Specs) -> Spec | None:
    chosen = [
        item.spec for name in ("condition", "self", "other") if isinstance(item := arguments.get(name), FakeTensor)
    ]
    if len(chosen) < 3:
        return None
    condition, left, right = chosen
    spec = _broadcast(chosen, specs, left.dtype) if left.dtype is right.dtype else None
    if spec is None and condition.dtype is torch.uint8:  # which torch's kernel takes, and its own shape rule does not
        as_bool = specs.get(condition.shape, condition.stride, torch.bool, condition.device)
        return specs.of(torch.where(meta_tensor(as_bool), meta_tensor(left), meta_tensor(right)), left.device)
    return spec


@shape_rule("aten::hardswish")  # elementwise, though its schema does not say so
def same_type(arguments: Arguments, specs: Specs) -> Spec | None:
    tensors = _tensors(arguments)
    if tensors is None or arguments.get("dtype") is not None:
        return None
    dtype = _common_type(tensors)
    return None if dtype is None or not dtype.is_floating_point else _broadcast(tensors, specs, dtype)


def compare(arguments: Arguments, specs: Specs) -> Spec | None:
    tensors = _tensors(arguments)
    return None if not tensors or _common_type(tensors) is None else _broadcast(tensors, specs, torch.bool)


def _tensors(arguments: Arguments) -> list[Spec] | None:
    """The specs of the tensors; None where an argument is of a kind the rule does not know."""
    found = []
    for value in arguments.values():
        if isinstance(value, FakeTensor):
            found.append(value.spec)
        elif isinstance(value, list | tuple | complex):
            return None
    return found


def _common_type(tensors: list[Spec]) -> torch.dtype | None:
    """The type of the tensors with dimensions; a 0-dim tensor of the same kind follows them."""
    sized = [spec for spec in tensors if spec.shape] or tensors
    if not sized:
        return None
    dtype = sized[0].dtype
    if any(spec.dtype is not dtype for spec in sized):
        return None
    if any(spec.dtype.is_complex or spec.dtype.is_floating_point != dtype.is_floating_point for spec in tensors):
        return None
    return dtype


def _broadcast(tensors: list[Spec], specs: Specs, dtype: torch.dtype) -> Spec | None:
    device = next((spec.device for spec in tensors if spec.shape), tensors[0].device)
    if any(spec.shape and spec.device != device for spec in tensors):
        return None
    first = tensors[0]
    if all(spec.shape == first.shape and spec.stride == first.stride for spec in tensors):
        stride = preserved_stride(first)
        return None if stride is None else specs.get(first.shape, stride, dtype, device)
    shape = _broadcast_shape([spec.shape for spec in tensors])
    if shape is None:
        return None
    if all(is_contiguous(spec.shape, spec.stride) for spec in tensors):
        return specs.contiguous(shape, dtype, device)
    # One full-size layout and vectors broadcast into it: vectors have no order of dimensions to disagree about.
    full = {spec.stride for spec in tensors if spec.shape == shape}
    vectors = all(spec.shape == shape or sum(size > 1 for size in spec.shape) <= 1 for spec in tensors)
    if len(full) == 1 and vectors:
        dense = next(spec for spec in tensors if spec.shape == shape)
        return specs.get(shape, dense.stride, dtype, device) if is_dense(dense) else None
    return None


def _broadcast_shape(shapes: list[tuple[int, ...]]) -> tuple[int, ...] | None:
    rank = max(map(len, shapes))
    result: list[int] = []
    for sizes in zip(*((1,) * (rank - len(shape)) + shape for shape in shapes), strict=True):
        wanted = {size for size in sizes if size != 1}
        if len(wanted) > 1:
            return None
        result.append(wanted.pop() if wanted else 1)
    return tuple(result)


@shape_rule("aten::sum", "aten::mean", "aten::amax", "aten::amin", "aten::var", "aten::std")
def reduce(arguments: Arguments, specs: Specs) -> Spec | None:
    x, dims = arguments["self"].spec, arguments.get("dim")
    rank = len(x.shape)
    if not x.dtype.is_floating_point or arguments.get("dtype") not in (None, x.dtype):
        return None
    # Reducing a permuted tensor may keep its order of dimensions; torch's kernel knows.
    if not is_contiguous(x.shape, x.stride) or 0 in x.shape:
        return None
    dims = [dims] if isinstance(dims, int) else dims or range(rank)
    if any(not -rank <= dim < rank for dim in dims):
        return None
    gone = {dim % rank for dim in dims} if rank else set()
    keep = arguments.get("keepdim", False)
    shape = tuple(1 if i in gone else n for i, n in enumerate(x.shape) if keep or i not in gone)
    return specs.contiguous(shape, x.dtype, x.device)


@shape_rule("aten::_softmax", "aten::_log_softmax", "aten::_safe_softmax")
def softmax(arguments: Arguments, specs: Specs) -> Spec | None:
    x, rank = arguments["self"].spec, len(arguments["self"].spec.shape)
    changes_type = arguments.get("half_to_float") or arguments.get("dtype") is not None
    if changes_type or not x.dtype.is_floating_point or not -rank <= arguments["dim"] < rank:
        return None
    return x if is_contiguous(x.shape, x.stride) else None


@shape_rule("aten::argmax", "aten::argmin")
def argmax(arguments: Arguments, specs: Specs) -> Spec | None:
    x, dim = arguments["self"].spec, arguments["dim"]
    rank = len(x.shape)
    if dim is None or arguments["keepdim"] or not -rank <= dim < rank:
        return None
    shape = tuple(n for i, n in enumerate(x.shape) if i != dim % rank)
    return specs.contiguous(shape, torch.int64, x.device)


@shape_rule("aten::cat")
def cat(arguments: Arguments, specs: Specs) -> Spec | None:
    parts = [part.spec for part in arguments["tensors"]]
    first, dim = parts[0], arguments["dim"]
    rank = len(first.shape)
    # Empty 1-D parts are skipped by torch, and channels_last parts decide the layout together.
    if any(len(part.shape) != rank or part.dtype is not first.dtype or 0 in part.shape for part in parts):
        return None
    if not -rank <= dim < rank or any(is_channels_last(part) or not is_dense(part) for part in parts):
        return None
    dim %= rank
    if any(part.shape[:dim] != first.shape[:dim] or part.shape[dim + 1 :] != first.shape[dim + 1 :] for part in parts):
        return None
    shape = (*first.shape[:dim], sum(part.shape[dim] for part in parts), *first.shape[dim + 1 :])
    return specs.contiguous(shape, first.dtype, first.device)


@shape_rule("aten::clone", "aten::roll", "aten::flip")
def clone(arguments: Arguments, specs: Specs) -> Spec | None:
    return _copied(arguments["self"].spec, specs, arguments.get("memory_format"))


@shape_rule("aten::_to_copy")
def to_copy(arguments: Arguments, specs: Specs) -> Spec | None:
    x, layout = arguments["self"].spec, arguments.get("layout")
    if layout not in (None, torch.strided):
        return None
    copied = _copied(x, specs, arguments["memory_format"])
    asked = arguments.get("device")
    device = x.device if asked is None or torch.device(asked).type == "meta" else torch.device(asked)
    return copied and specs.get(copied.shape, copied.stride, arguments["dtype"] or x.dtype, device)


def _copied(x: Spec, specs: Specs, memory_format: torch.memory_format | None) -> Spec | None:
    if memory_format is torch.contiguous_format:
        return specs.contiguous(x.shape, x.dtype, x.device)
    if memory_format not in (None, torch.preserve_format):
        return None
    stride = preserved_stride(x)
    return None if stride is None else specs.get(x.shape, stride, x.dtype, x.device)


@shape_rule("aten::embedding")
def embedding(arguments: Arguments, specs: Specs) -> Spec | None:
    table, indices = arguments["weight"].spec, arguments["indices"].spec
    if indices.dtype not in (torch.int64, torch.int32):
        # The one error a rule reports: the meta kernels of older releases take any type, the real one does not.
        raise RuntimeError(f"indices must be int64 or int32, not {dtype_name(indices.dtype)}")
    if len(table.shape) != 2:
        return None
    shape = (*indices.shape, table.shape[1])
    return specs.contiguous(shape, table.dtype, table.device)
