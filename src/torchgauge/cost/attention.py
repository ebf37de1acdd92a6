"""Scaled dot-product attention, fused: softmax(q kᵀ · scale + mask) v, one score per query head, query and key.

Causal and windowed attention count in full, and grouped queries by the query heads, so the MACs are the same whichever
kernel ran. Flex attention counts the blocks that its block mask lists, since no other kernel computes fewer. Besides
the two products a score costs 6 flops (scaling 1, softmax 5), 1 more with an additive mask and 3 more with dropout.
The work of a flex attention's `score_mod` is unknown and not counted.

The backward pass has four products: the gradients of the value, the weights, the query and the key. Fused kernels
recompute the scores, which counts as flops but not as MACs, so that the MACs do not depend on the kernel. A score there
costs 6 flops (scale, subtract the log-sum-exp, exp; subtract, multiply, scale), and the row sums of grad · out 2 per
output element.

Packed sequences of unknown lengths are assumed to have the same length.

The fused multi-head and encoder-layer kernels of the inference fast path do projections and attention in one op.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from torchgauge.cost.registry import Call, Work, formula
from torchgauge.cost.work import argument, arithmetic, products, rows
from torchgauge.facts import TensorSpec

SCORE_FLOPS = 6
_DROPOUT_FLOPS = 3
_BACKWARD_SCORE_FLOPS = 6
# These kernels take head sizes that are multiples of 8; others are padded before the call.
_PADDED = ("aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_flash_attention_backward")
_PADDED_TO = 8


_HEADS_FIRST = (
    "aten::scaled_dot_product_attention", "aten::_scaled_dot_product_attention_math",
    "aten::_scaled_dot_product_attention_math_for_mps", "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention", "aten::_scaled_dot_product_fused_attention_overrideable",
    "aten::_triton_scaled_dot_attention", "aten::_cudnn_attention_forward", "higher_order::flex_attention",
)  # fmt: skip
_HEADS_FIRST_BACKWARD = (
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward", "aten::_scaled_dot_product_flash_attention_backward",
    "aten::_scaled_dot_product_efficient_attention_backward", "aten::_scaled_dot_product_cudnn_attention_backward",
    "aten::_scaled_dot_product_fused_attention_overrideable_backward", "aten::_cudnn_attention_backward",
    "higher_order::flex_attention_backward",
)  # fmt: skip


class Heads(NamedTuple):
    """The number of scores, and the sizes of a query and of a value vector."""

    scores: int
    query_size: int
    value_size: int


@formula(*_HEADS_FIRST, category="attention")
def attention(call: Call) -> Work:
    return attend(call, _heads_first(call))


@formula(*_HEADS_FIRST_BACKWARD, category="attention")
def attention_backward(call: Call) -> Work:
    return attend_backward(call, _heads_first(call))


@formula(
    "aten::_flash_attention_forward", "aten::_flash_attention_forward_no_dropout_inplace",
    "aten::_efficient_attention_forward", "torch_attn::_varlen_attn", "torch_attn::_varlen_attn_out",
    "flash_attn::_flash_attn_forward", "flash_attn::_flash_attn_varlen_forward", category="attention",
)  # fmt: skip
def token_attention(call: Call) -> Work:
    return attend(call, tokens_first(call))


@formula(
    "aten::_flash_attention_backward", "aten::_efficient_attention_backward", "torch_attn::_varlen_attn_backward",
    "flash_attn::_flash_attn_backward", "flash_attn::_flash_attn_varlen_backward", category="attention",
)  # fmt: skip
def token_attention_backward(call: Call) -> Work:
    return attend_backward(call, tokens_first(call))


def attend(call: Call, heads: Heads) -> Work:
    mask = argument(call, "attn_mask", "attn_bias", "bias")
    adds = isinstance(mask, TensorSpec) and mask.is_floating
    mask_flops = adds + (_DROPOUT_FLOPS if call.get("dropout_p", 0.0) > 0 else 0)
    flops = heads.scores * (SCORE_FLOPS + mask_flops)
    return products(call, heads.scores * (heads.query_size + heads.value_size), flops)


def attend_backward(call: Call, heads: Heads) -> Work:
    grad = argument(call, "grad_out", "grad_out_", "dout")
    # dQ, dK, dP and dV; the scores that a fused kernel recomputes are flops of that kernel, not of the mathematics.
    macs = 2 * heads.scores * (heads.query_size + heads.value_size)
    recomputed = 2 * heads.scores * heads.query_size
    row_sums = 2 * grad.numel if isinstance(grad, TensorSpec) else 0
    return products(call, macs, recomputed + heads.scores * _BACKWARD_SCORE_FLOPS + row_sums)


def _heads_first(call: Call) -> Heads:
    """(batch, heads, length, size); cuDNN's kernel also takes packed tokens."""
    query, key, value = _query_key_value(call)
    if call.op.startswith("aten::_cudnn_attention") and len(query.shape) == 3:
        return tokens_first(call)
    scores = call.get("computed_scores", prod(query.shape[:-1]) * key.shape[-2])
    return Heads(scores, _true_size(call, query), _true_size(call, value))


def tokens_first(call: Call) -> Heads:
    """(batch, length, heads, size), or (tokens of all sequences, heads, size) with their cumulative lengths."""
    query, key, value = _query_key_value(call)
    vectors = prod(query.shape[:-1])
    if argument(call, "block_table", "block_table_", "page_table") is not None:
        # The key is a pool of pages then, of which a sequence uses at most `max_k`.
        scores = vectors * argument(call, "max_k", "max_seqlen_k")
    else:
        offsets = argument(call, "cum_seq_q", "cu_seqlens_q", "cu_seq_q")
        sequences = offsets.numel - 1 if isinstance(offsets, TensorSpec) else query.shape[0]
        scores = vectors * prod(key.shape[:-2]) // max(sequences, 1)
    return Heads(scores, query.shape[-1], value.shape[-1])


def _query_key_value(call: Call) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    return argument(call, "query", "q"), argument(call, "key", "k"), argument(call, "value", "v")


def _true_size(call: Call, spec: TensorSpec) -> int:
    """The size of a head before it was padded for a CUDA flash kernel: the scale is still 1 / √size."""
    size = spec.shape[-1]
    scale = call.get("scale")
    if not scale or call.op not in _PADDED:
        return size
    original = round(scale**-2)
    is_padded = size - _PADDED_TO < original < size and abs(original * scale**2 - 1) < 1e-6
    return original if is_padded else size


_LAYER_NORM_FLOPS, _LAYER_NORM_ROW_FLOPS = 8, 4
_GELU_FLOPS, _RELU_FLOPS = 5, 1


@formula("aten::_native_multi_head_attention", "aten::_triton_multi_head_attention", category="attention")
def multi_head_attention(call: Call) -> Work:
    macs, flops = _multi_head(call, call["query"], call["key"], call["value"])
    return products(call, macs, flops)


@formula("aten::_transformer_encoder_layer_fwd", category="attention")
def encoder_layer(call: Call) -> Work:
    """Attention, two residual sums, two layer norms and the feed-forward block."""
    src, hidden = call["src"], call["ffn_weight_1"].shape[0]
    tokens = rows(src)
    macs, flops = _multi_head(call, src, src, src)
    macs += 2 * src.numel * hidden
    activation = _GELU_FLOPS if call["use_gelu"] else _RELU_FLOPS
    flops += tokens * hidden * (1 + activation) + src.numel  # biases of the block, activation
    flops += 2 * src.numel + 2 * (_LAYER_NORM_FLOPS * src.numel + _LAYER_NORM_ROW_FLOPS * tokens)
    return products(call, macs, flops)


@formula("aten::_transform_bias_rescale_qkv", category="attention")
def bias_rescale(call: Call) -> Work:
    """The bias is added everywhere, the query (a third) is scaled."""
    return arithmetic(call, call["qkv"].numel + call["qkv"].numel // 3)


def _multi_head(call: Call, query: TensorSpec, key: TensorSpec, value: TensorSpec) -> tuple[int, int]:
    width = call["embed_dim"]
    heads = call.get("num_head", call.get("num_heads"))
    projected = rows(query) * width
    # Per head and query one score for each key of the same sequence.
    scores = heads * rows(query) * key.shape[-2]
    macs = (query.numel + key.numel + value.numel + projected) * width + 2 * scores * (width // heads)
    biases = (rows(query) + rows(key) + rows(value)) * width + projected
    return macs, biases + scores * SCORE_FLOPS
