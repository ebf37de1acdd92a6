from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention

from tests.models.checked import DEVICES, analyze_checked, assert_same_figures
from tests.models.closed_forms import attention, linear
from tests.zoo import FusedAttention, HandAttention

BATCH, HEADS, QUERIES, KEYS, HEAD_SIZE = 2, 4, 10, 14, 8
WIDTH = HEADS * HEAD_SIZE

KERNELS = {
    SDPBackend.MATH: "aten::_safe_softmax",
    SDPBackend.FLASH_ATTENTION: "aten::_scaled_dot_product_flash_attention_for_cpu",
}
kernels = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name.lower())


class Attend(nn.Module):
    def __init__(self, causal: bool = False, scale: float | None = None) -> None:
        super().__init__()
        self.causal, self.scale = causal, scale

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        grouped = q.shape[1] != k.shape[1]
        return F.scaled_dot_product_attention(
            q, k, v, mask, is_causal=self.causal, scale=self.scale, enable_gqa=grouped
        )


def heads(count: int, length: int, size: int = HEAD_SIZE) -> Tensor:
    return torch.zeros(BATCH, count, length, size)


def projections(kv_heads: int, length: int = QUERIES) -> int:
    """Query, key, value and output projections of a self-attention."""
    return linear(BATCH * length, WIDTH, 2 * WIDTH + 2 * kv_heads * HEAD_SIZE)


def test_attention_written_by_hand() -> None:
    analysis = analyze_checked(HandAttention(WIDTH, HEADS), input_size=(BATCH, QUERIES, WIDTH))
    assert analysis.totals.macs == projections(HEADS) + attention(BATCH, HEADS, QUERIES, QUERIES, HEAD_SIZE)


@kernels
@pytest.mark.parametrize("kv_heads", [HEADS, 2, 1])
@pytest.mark.parametrize("causal", [False, True])
def test_grouped_and_causal_attention_with_each_kernel(kernel: SDPBackend, kv_heads: int, causal: bool) -> None:
    model = FusedAttention(WIDTH, HEADS, kv_heads, causal)
    with sdpa_kernel(kernel):
        analysis = analyze_checked(model, input_size=(BATCH, QUERIES, WIDTH))
    assert KERNELS[kernel] in {row.op for row in analysis.ops}
    assert analysis.totals.macs == projections(kv_heads) + attention(BATCH, HEADS, QUERIES, QUERIES, HEAD_SIZE)


MASKS = {
    "none": None,
    "boolean": torch.ones(QUERIES, KEYS, dtype=torch.bool),
    "additive": torch.zeros(QUERIES, KEYS),
    "per head": torch.zeros(BATCH, HEADS, QUERIES, KEYS),
    "per key": torch.ones(BATCH, 1, 1, KEYS, dtype=torch.bool),
}


@kernels
@pytest.mark.parametrize("mask", MASKS)
def test_masks_change_no_macs(kernel: SDPBackend, mask: str) -> None:
    inputs = (heads(HEADS, QUERIES), heads(HEADS, KEYS), heads(HEADS, KEYS), MASKS[mask])
    with sdpa_kernel(kernel):
        analysis = analyze_checked(Attend(), inputs=inputs)
    assert analysis.totals.macs == attention(BATCH, HEADS, QUERIES, KEYS, HEAD_SIZE)


def test_values_may_be_wider_than_keys() -> None:
    inputs = (heads(HEADS, QUERIES), heads(HEADS, KEYS), heads(HEADS, KEYS, 20))
    scores = BATCH * HEADS * QUERIES * KEYS
    assert analyze_checked(Attend(), inputs=inputs).totals.macs == scores * (HEAD_SIZE + 20)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.5])
def test_the_kernel_chosen_by_default_counts_like_the_forced_ones(causal: bool, scale: float | None) -> None:
    inputs = tuple(heads(HEADS, QUERIES) for _ in range(3))
    analysis = analyze_checked(Attend(causal, scale), inputs=inputs)
    assert analysis.totals.macs == attention(BATCH, HEADS, QUERIES, QUERIES, HEAD_SIZE)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("device", DEVICES)
def test_device_and_type_change_no_macs(device: str, dtype: str) -> None:
    analysis = analyze_checked(
        FusedAttention(WIDTH, HEADS, 2), input_size=(BATCH, QUERIES, WIDTH), device=device, dtype=dtype
    )
    assert analysis.totals.macs == projections(2) + attention(BATCH, HEADS, QUERIES, QUERIES, HEAD_SIZE)


class FlexAttention(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        result = flex_attention(q, k, v, score_mod=lambda score, batch, head, i, j: score + i - j)
        assert isinstance(result, Tensor)
        return result


def test_flex_attention_counts_its_two_products() -> None:
    inputs = (heads(HEADS, 128, 16), heads(HEADS, 256, 16), heads(HEADS, 256, 16))
    analysis = analyze_checked(FlexAttention(), inputs=inputs)
    assert analysis.totals.macs == attention(BATCH, HEADS, 128, 256, 16)


@kernels
def test_real_and_meta_parameters_give_the_same_figures(kernel: SDPBackend) -> None:
    model = FusedAttention(WIDTH, HEADS, 2, causal=True)
    with sdpa_kernel(kernel):
        real = analyze_checked(model, input_size=(BATCH, QUERIES, WIDTH))
        assert_same_figures(real, analyze_checked(model.to("meta"), input_size=(BATCH, QUERIES, WIDTH)))


def test_grad_mode_changes_nothing() -> None:
    model = FusedAttention(WIDTH, HEADS)
    with torch.enable_grad():
        on = analyze_checked(model, input_size=(BATCH, QUERIES, WIDTH))
    with torch.no_grad():
        off = analyze_checked(model, input_size=(BATCH, QUERIES, WIDTH))
    with torch.inference_mode():
        inference = analyze_checked(model, input_size=(BATCH, QUERIES, WIDTH))
    assert_same_figures(on, off)
    assert_same_figures(on, inference)
