"""Shape rules of matrix products and attention."""

from __future__ import annotations

import torch

from torchgauge.capture.fake_tensor import FakeTensor, Spec, Specs, dtype_name
from torchgauge.capture.opcall import Arguments
from torchgauge.capture.rules.registry import Result, preserved_stride, shape_rule
from torchgauge.facts.tensor import contiguous_stride


@shape_rule("aten::mm", "aten::bmm")
def product(arguments: Arguments, specs: Specs) -> Spec | None:
    return _product(arguments["self"].spec, arguments["mat2"].spec, specs)


@shape_rule("aten::addmm", "aten::_addmm_activation")
def addmm(arguments: Arguments, specs: Specs) -> Spec | None:
    bias = arguments["self"].spec
    out = _product(arguments["mat1"].spec, arguments["mat2"].spec, specs)
    return out if out is not None and bias.dtype is out.dtype and _expands(bias.shape, out.shape) else None


@shape_rule("aten::baddbmm")
def baddbmm(arguments: Arguments, specs: Specs) -> Spec | None:
    bias = arguments["self"].spec
    out = _product(arguments["batch1"].spec, arguments["batch2"].spec, specs)
    return out if out is not None and bias.dtype is out.dtype and _expands(bias.shape, out.shape) else None


@shape_rule("aten::_scaled_mm", "aten::_scaled_mm_v2")
def scaled_product(arguments: Arguments, specs: Specs) -> Spec | None:
    """Of numbers that are packed in pairs: torch's meta kernel expects the scales of half the columns of MXFP4."""
    left, right = arguments["self"].spec, arguments["mat2"].spec
    if not dtype_name(left.dtype).endswith("_x2") or left.shape[-1] != right.shape[-2]:
        return None
    shape = (left.shape[0], right.shape[1])
    return specs.get(shape, contiguous_stride(shape), arguments["out_dtype"] or torch.bfloat16, left.device)


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
    return specs.get(shape, contiguous_stride(shape), left.dtype, left.device)


def _expands(small: tuple[int, ...], large: tuple[int, ...]) -> bool:
    pairs = zip(reversed(small), reversed(large), strict=False)
    return len(small) <= len(large) and all(a in (1, b) for a, b in pairs)


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
    return specs.get(shape, contiguous_stride(shape), arguments["out_dtype"] or left.dtype, left.device)


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
    out = specs.get(query.shape, contiguous_stride(query.shape), query.dtype, query.device)
    if not arguments["need_weights"]:
        return out, None
    heads = () if arguments["average_attn_weights"] else (arguments["num_head"],)
    shape = (batch, *heads, length, key.shape[1])
    return out, specs.get(shape, contiguous_stride(shape), query.dtype, query.device)


@shape_rule("aten::_transformer_encoder_layer_fwd")
def encoder_layer(arguments: Arguments, specs: Specs) -> Spec:
    src: Spec = arguments["src"].spec
    return specs.get(src.shape, contiguous_stride(src.shape), src.dtype, src.device)


@shape_rule("higher_order::flex_attention")
def flex(arguments: Arguments, specs: Specs) -> Result:
    query, value = arguments["query"].spec, arguments["value"].spec
    shape = (*query.shape[:-1], value.shape[-1])
    rows = query.shape[:-1]
    sums = specs.get(rows, contiguous_stride(rows), torch.float32, query.device)
    return specs.get(shape, contiguous_stride(shape), query.dtype, query.device), sums, sums


@shape_rule("higher_order::flex_attention_backward")
def flex_backward(arguments: Arguments, specs: Specs) -> Result:
    """Gradients of query, key and value, and of the tensors that the score function reads."""

    def like(item: object) -> Spec | None:
        if not isinstance(item, FakeTensor):
            return None
        spec = item.spec
        return specs.get(spec.shape, contiguous_stride(spec.shape), spec.dtype, spec.device)

    made = tuple(like(arguments[name]) for name in ("query", "key", "value"))
    return (*made, tuple(map(like, arguments["score_mod_other_buffers"])))
