"""The fused multi-head and encoder-layer kernels of the inference fast path: projections and attention in one op."""

from __future__ import annotations

from torchgauge.cost.attention import SCORE_FLOPS
from torchgauge.cost.registry import Call, Work, formula
from torchgauge.cost.work import arithmetic, products, rows
from torchgauge.facts import TensorSpec

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
    # Per head and query one score for each key of its own sequence.
    scores = heads * rows(query) * key.shape[-2]
    macs = (query.numel + key.numel + value.numel + projected) * width + 2 * scores * (width // heads)
    biases = (rows(query) + rows(key) + rows(value)) * width + projected
    return macs, biases + scores * SCORE_FLOPS
