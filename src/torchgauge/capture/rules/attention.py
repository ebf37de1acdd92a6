"""Attention kernels. Those of the fast paths of `nn.MultiheadAttention` and its encoder layer have no meta kernel."""

from __future__ import annotations

from typing import Any

import torch

from torchgauge.capture.fake_tensor import Spec, Specs
from torchgauge.capture.rules.layout import preserved_stride
from torchgauge.capture.rules.registry import Arguments, shape_rule
from torchgauge.facts.strides import contiguous_stride


@shape_rule("aten::_scaled_dot_product_flash_attention_for_cpu")
def flash_on_cpu(arguments: Arguments, specs: Specs) -> Any:
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
def multi_head(arguments: Arguments, specs: Specs) -> Any:
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
def flex(arguments: Arguments, specs: Specs) -> Any:
    query, value = arguments["query"].spec, arguments["value"].spec
    shape = (*query.shape[:-1], value.shape[-1])
    rows = query.shape[:-1]
    sums = specs.get(rows, contiguous_stride(rows), torch.float32, query.device)
    return specs.get(shape, contiguous_stride(shape), query.dtype, query.device), sums, sums


@shape_rule("higher_order::flex_attention_backward")
def flex_backward(arguments: Arguments, specs: Specs) -> Any:
    """Gradients of query, key and value, and of the tensors that the score function reads."""

    def like(item: Any) -> Spec | None:
        if not isinstance(item, torch.Tensor):
            return None
        spec: Spec = item.spec  # type: ignore[attr-defined]
        return specs.get(spec.shape, contiguous_stride(spec.shape), spec.dtype, spec.device)

    made = tuple(like(arguments[name]) for name in ("query", "key", "value"))
    return (*made, tuple(map(like, arguments["score_mod_other_buffers"])))
