"""One rule for all elementwise ops on floating tensors of one type; mixed types are left to torch's promotion."""

from __future__ import annotations

import torch

from torchgauge.capture.fake_tensor import FakeTensor, Spec, Specs, dtype_name
from torchgauge.capture.opcall import Arguments
from torchgauge.capture.rules.registry import Result, Rule, is_channels_last, is_dense, preserved_stride, shape_rule
from torchgauge.facts.tensor import contiguous_stride, is_contiguous

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


def pointwise_rule(op: str) -> Rule | None:
    if op in _COMPARISONS:
        return _compare
    return None if op in _OTHER_TYPES or op.endswith("_out") else _same_type


@shape_rule("aten::masked_fill", "aten::masked_fill_")
def masked_fill(arguments: Arguments, specs: Specs) -> Spec | None:
    x, mask = arguments["self"].spec, arguments["mask"].spec
    if isinstance(arguments["value"], FakeTensor) or mask.dtype is not torch.bool:
        return None
    shape = _broadcast_shape([x.shape, mask.shape])
    # The kernel copies to a contiguous tensor first, whatever the layout was.
    return None if shape is None else specs.get(shape, contiguous_stride(shape), x.dtype, x.device)


@shape_rule("aten::where")
def where(arguments: Arguments, specs: Specs) -> Spec | None:
    chosen = [
        item.spec for name in ("condition", "self", "other") if isinstance(item := arguments.get(name), FakeTensor)
    ]
    if len(chosen) < 3:
        return None
    condition, left, right = chosen
    return _broadcast([condition, left, right], specs, left.dtype) if left.dtype is right.dtype else None


@shape_rule("aten::hardswish")  # elementwise, though its schema does not say so
def _same_type(arguments: Arguments, specs: Specs) -> Spec | None:
    tensors = _tensors(arguments)
    if tensors is None or arguments.get("dtype") is not None:
        return None
    dtype = _common_type(tensors)
    return None if dtype is None or not dtype.is_floating_point else _broadcast(tensors, specs, dtype)


def _compare(arguments: Arguments, specs: Specs) -> Spec | None:
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
        return specs.get(shape, contiguous_stride(shape), dtype, device)
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
    return specs.get(shape, contiguous_stride(shape), x.dtype, x.device)


@shape_rule("aten::_safe_softmax")
def safe_softmax(arguments: Arguments, specs: Specs) -> Result:
    return None if arguments["dtype"] is not None else softmax(arguments | {"half_to_float": False}, specs)


@shape_rule("aten::_softmax", "aten::_log_softmax")
def softmax(arguments: Arguments, specs: Specs) -> Spec | None:
    x, rank = arguments["self"].spec, len(arguments["self"].spec.shape)
    if arguments["half_to_float"] or not x.dtype.is_floating_point or not -rank <= arguments["dim"] < rank:
        return None
    return x if is_contiguous(x.shape, x.stride) else None


@shape_rule("aten::argmax", "aten::argmin")
def argmax(arguments: Arguments, specs: Specs) -> Spec | None:
    x, dim = arguments["self"].spec, arguments["dim"]
    rank = len(x.shape)
    if dim is None or arguments["keepdim"] or not -rank <= dim < rank:
        return None
    shape = tuple(n for i, n in enumerate(x.shape) if i != dim % rank)
    return specs.get(shape, contiguous_stride(shape), torch.int64, x.device)


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
    return specs.get(shape, contiguous_stride(shape), first.dtype, first.device)


@shape_rule("aten::clone")
def clone(arguments: Arguments, specs: Specs) -> Spec | None:
    return _copied(arguments["self"].spec, specs, arguments["memory_format"])


@shape_rule("aten::roll", "aten::flip")
def rearrange(arguments: Arguments, specs: Specs) -> Spec | None:
    return _copied(arguments["self"].spec, specs, None)


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
        return specs.get(x.shape, contiguous_stride(x.shape), x.dtype, x.device)
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
    return specs.get(shape, contiguous_stride(shape), table.dtype, table.device)
