"""`nn.MultiheadAttention` and the layers of `nn.Transformer`: fused in eval mode without grad, spelt out otherwise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchgauge as tg
from tests.models.checked import analyze_checked, assert_same_figures, on_meta
from tests.models.closed_forms import attention, linear

BATCH, LENGTH, MEMORY, WIDTH, HEADS, HIDDEN = 2, 6, 9, 32, 4, 48
FUSED_ATTENTION, FUSED_LAYER = "aten::_native_multi_head_attention", "aten::_transformer_encoder_layer_fwd"


def multihead(queries: int, keys: int, *, kdim: int = WIDTH, vdim: int = WIDTH, extra_keys: int = 0) -> int:
    projections = linear(BATCH * queries, WIDTH, 2 * WIDTH) + linear(BATCH * keys, kdim + vdim, WIDTH)
    return projections + attention(BATCH, HEADS, queries, keys + extra_keys, WIDTH // HEADS)


def feed_forward(length: int) -> int:
    return 2 * linear(BATCH * length, WIDTH, HIDDEN)


def encoder_layer(length: int = LENGTH) -> int:
    return multihead(length, length) + feed_forward(length)


def decoder_layer(length: int, memory: int) -> int:
    return multihead(length, length) + multihead(length, memory) + feed_forward(length)


def tokens(length: int = LENGTH, width: int = WIDTH, batch_first: bool = True) -> Tensor:
    return torch.zeros(BATCH, length, width) if batch_first else torch.zeros(length, BATCH, width)


def ops(analysis: tg.Analysis) -> set[str]:
    return {row.op for row in analysis.ops}


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_self_attention_counts_projections_and_both_products(batch_first: bool, need_weights: bool, bias: bool) -> None:
    layer = nn.MultiheadAttention(WIDTH, HEADS, bias=bias, batch_first=batch_first)
    x = tokens(batch_first=batch_first)
    analysis = analyze_checked(layer, inputs=(x, x, x), kwargs={"need_weights": need_weights})
    assert (FUSED_ATTENTION in ops(analysis)) == (batch_first and bias)
    assert analysis.totals.macs == multihead(LENGTH, LENGTH)


@pytest.mark.parametrize(
    ("options", "extra_keys"),
    [({}, 0), ({"add_bias_kv": True}, 1), ({"add_zero_attn": True}, 1), ({"kdim": 20, "vdim": 24}, 0)],
    ids=["plain", "bias_kv", "zero_attn", "kdim and vdim"],
)
def test_cross_attention_counts_keys_and_values_of_the_other_sequence(options: dict[str, Any], extra_keys: int) -> None:
    layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **options)
    kdim, vdim = options.get("kdim", WIDTH), options.get("vdim", WIDTH)
    analysis = analyze_checked(layer, inputs=(tokens(), tokens(MEMORY, kdim), tokens(MEMORY, vdim)))
    assert analysis.totals.macs == multihead(LENGTH, MEMORY, kdim=kdim, vdim=vdim, extra_keys=extra_keys)


@pytest.mark.parametrize("mask", ["key_padding_mask", "attn_mask"])
def test_masks_change_no_macs(mask: str) -> None:
    layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    shape = (BATCH, LENGTH) if mask == "key_padding_mask" else (LENGTH, LENGTH)
    x = tokens()
    analysis = analyze_checked(layer, inputs=(x, x, x), kwargs={mask: torch.zeros(shape, dtype=torch.bool)})
    assert analysis.totals.macs == multihead(LENGTH, LENGTH)


def forward_macs(analysis: tg.Analysis) -> int:
    return sum(row.macs for row in analysis.ops if row.phase == "forward")


def test_the_spelt_out_path_of_training_counts_like_the_fused_one() -> None:
    layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    x = tokens()
    training = tg.analyze(layer, inputs=(x, x, x), mode="train")
    assert FUSED_ATTENTION not in ops(training)
    assert forward_macs(training) == multihead(LENGTH, LENGTH)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_an_encoder_layer_in_its_fused_and_spelt_out_forms(
    batch_first: bool, norm_first: bool, activation: str
) -> None:
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, HIDDEN, batch_first=batch_first, norm_first=norm_first, activation=activation
    )
    x = tokens(batch_first=batch_first)
    fused = analyze_checked(layer, inputs=x)
    training = tg.analyze(layer, inputs=x, mode="train")
    assert (FUSED_LAYER in ops(fused)) == batch_first
    assert FUSED_LAYER not in ops(training)
    assert fused.totals.macs == forward_macs(training) == encoder_layer()


@pytest.mark.parametrize("padded", [False, True])
def test_an_encoder_counts_each_of_its_layers_padding_included(padded: bool) -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, batch_first=True), 3)
    mask = torch.tensor([[False] * LENGTH, [False] * 4 + [True] * 2]) if padded else None
    analysis = analyze_checked(encoder, inputs=tokens(), kwargs={"src_key_padding_mask": mask})
    assert analysis.totals.macs == 3 * encoder_layer()
    assert [row.macs for row in analysis.modules if row.path.count(".") == 1] == [encoder_layer()] * 3


def test_a_decoder_layer_attends_to_itself_and_to_the_memory() -> None:
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, HIDDEN, batch_first=True)
    analysis = analyze_checked(layer, inputs=(tokens(), tokens(MEMORY)))
    assert analysis.totals.macs == decoder_layer(LENGTH, MEMORY)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("batch_first", [True, False])
def test_a_whole_transformer(batch_first: bool) -> None:
    model = nn.Transformer(WIDTH, HEADS, 2, 3, HIDDEN, batch_first=batch_first)
    inputs = (tokens(MEMORY, batch_first=batch_first), tokens(batch_first=batch_first))
    causal = nn.Transformer.generate_square_subsequent_mask(LENGTH)
    analysis = analyze_checked(model, inputs=inputs, kwargs={"tgt_mask": causal, "tgt_is_causal": True})
    assert analysis.totals.macs == 2 * encoder_layer(MEMORY) + 3 * decoder_layer(LENGTH, MEMORY)


def encoder(batch_first: bool) -> nn.Module:
    return nn.TransformerEncoder(
        nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, batch_first=batch_first), 2, enable_nested_tensor=batch_first
    )


@pytest.mark.parametrize("batch_first", [True, False], ids=["fused", "spelt out"])
def test_real_and_meta_parameters_give_the_same_figures(batch_first: bool) -> None:
    x = tokens(batch_first=batch_first)
    assert_same_figures(
        analyze_checked(encoder(batch_first), inputs=x), analyze_checked(on_meta(encoder, batch_first), inputs=x)
    )


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_a_model_was_left_in_changes_nothing(training: bool) -> None:
    model = encoder(batch_first=True).train(training)
    assert analyze_checked(model, inputs=tokens()).totals.macs == 2 * encoder_layer()
    assert model.training is training
