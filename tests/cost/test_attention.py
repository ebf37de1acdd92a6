from __future__ import annotations

from typing import Any

import pytest

from tests.cost.calls import cost, judge, spec
from torchgauge.facts import Cost, TensorSpec

BATCH, HEADS, QUERIES, KEYS, SIZE, VALUE = 2, 4, 6, 10, 8, 16
SCORES = BATCH * HEADS * QUERIES * KEYS
MACS = SCORES * (SIZE + VALUE)
BACKWARD_MACS = SCORES * (2 * SIZE + 2 * VALUE)
RECOMPUTED_FLOPS = 2 * SCORES * SIZE

KERNELS = [
    "aten::scaled_dot_product_attention",
    "aten::_scaled_dot_product_attention_math",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_fused_attention_overrideable",
    "aten::_cudnn_attention_forward",
    "higher_order::flex_attention",
]
BACKWARD_KERNELS = [
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    "aten::_scaled_dot_product_flash_attention_backward",
    "aten::_scaled_dot_product_efficient_attention_backward",
    "aten::_scaled_dot_product_cudnn_attention_backward",
    "aten::_scaled_dot_product_fused_attention_overrideable_backward",
    "aten::_cudnn_attention_backward",
    "higher_order::flex_attention_backward",
]


def attend(op: str, *, key_heads: int = HEADS, **arguments: Any) -> Cost:
    query = spec(BATCH, HEADS, QUERIES, SIZE)
    key, value = spec(BATCH, key_heads, KEYS, SIZE), spec(BATCH, key_heads, KEYS, VALUE)
    return cost(op, spec(BATCH, HEADS, QUERIES, VALUE), query=query, key=key, value=value, **arguments)


@pytest.mark.parametrize("op", KERNELS)
def test_every_kernel_counts_scores_and_values(op: str) -> None:
    done = attend(op)
    assert (done.macs, done.flops) == (MACS, 2 * MACS + 6 * SCORES)


@pytest.mark.parametrize("op", KERNELS)
def test_grouped_queries_count_the_query_heads(op: str) -> None:
    assert attend(op, key_heads=1).macs == MACS


def test_causal_attention_counts_in_full() -> None:
    assert attend(KERNELS[0], is_causal=True) == attend(KERNELS[0], is_causal=False)


def test_an_additive_mask_and_dropout_are_flops() -> None:
    bare = attend(KERNELS[0]).flops
    assert attend(KERNELS[0], attn_mask=spec(QUERIES, KEYS)).flops == bare + SCORES
    assert attend(KERNELS[0], attn_mask=spec(QUERIES, KEYS, dtype="bool")).flops == bare
    assert attend(KERNELS[0], dropout_p=0.1).flops == bare + 3 * SCORES


@pytest.mark.parametrize("op", BACKWARD_KERNELS)
def test_every_backward_kernel_has_four_products_and_computes_the_scores_anew(op: str) -> None:
    grad = spec(BATCH, HEADS, QUERIES, VALUE)
    done = attend(op, grad_out=grad)
    assert (done.macs, done.flops) == (
        BACKWARD_MACS,
        2 * BACKWARD_MACS + RECOMPUTED_FLOPS + 6 * SCORES + 2 * grad.numel,
    )


@pytest.mark.parametrize(
    "op", ["aten::_flash_attention_forward", "aten::_efficient_attention_forward", "flash_attn::_flash_attn_forward"]
)
def test_kernels_with_the_length_before_the_heads(op: str) -> None:
    prefix = ["q", "k", "v"] if op.startswith("flash_attn") else ["query", "key", "value"]
    shapes = (spec(BATCH, QUERIES, HEADS, SIZE), spec(BATCH, KEYS, HEADS, SIZE), spec(BATCH, KEYS, HEADS, VALUE))
    out = spec(BATCH, QUERIES, HEADS, VALUE)
    assert cost(op, out, **dict(zip(prefix, shapes, strict=True))).macs == MACS


def packed(tokens: int, size: int) -> TensorSpec:
    return spec(tokens, HEADS, size)


def test_packed_sequences_are_taken_as_equally_long() -> None:
    offsets = spec(BATCH + 1, dtype="int32")
    done = cost(
        "aten::_flash_attention_forward",
        packed(BATCH * QUERIES, VALUE),
        query=packed(BATCH * QUERIES, SIZE),
        key=packed(BATCH * KEYS, SIZE),
        value=packed(BATCH * KEYS, VALUE),
        cum_seq_q=offsets,
        cum_seq_k=offsets,
    )
    assert done.macs == MACS


def test_pages_of_a_key_cache_count_the_longest_sequence() -> None:
    done = cost(
        "torch_attn::_varlen_attn",
        packed(BATCH * QUERIES, SIZE),
        query=packed(BATCH * QUERIES, SIZE),
        key=spec(99, 16, HEADS, SIZE),
        value=spec(99, 16, HEADS, SIZE),
        cu_seq_q=spec(BATCH + 1, dtype="int32"),
        max_k=KEYS,
        block_table=spec(BATCH, 3, dtype="int32"),
    )
    assert done.macs == SCORES * 2 * SIZE


@pytest.mark.parametrize(("scale", "size"), [(20**-0.5, 20), (None, 24), (24**-0.5, 24), (0.3, 24)])
def test_a_head_padded_for_a_kernel_counts_with_its_own_size(scale: float | None, size: int) -> None:
    head = spec(1, 1, 5, 24)
    done = cost("aten::_scaled_dot_product_flash_attention", head, query=head, key=head, value=head, scale=scale)
    assert done.macs == 25 * 2 * size


def test_multi_head_attention_adds_its_projections() -> None:
    x, width, heads = spec(3, 5, 8), 8, 2
    found = judge(
        "aten::_native_multi_head_attention",
        x,
        query=x,
        key=x,
        value=x,
        embed_dim=width,
        num_head=heads,
        qkv_weight=spec(24, 8),
        qkv_bias=spec(24),
        proj_weight=spec(8, 8),
        proj_bias=spec(8),
    )
    scores = 3 * heads * 25
    macs = 4 * 15 * width**2 + 2 * scores * width // heads
    assert found.category == "attention"
    assert (found.cost.macs, found.cost.flops) == (macs, 2 * macs + 4 * 15 * width + 6 * scores)
