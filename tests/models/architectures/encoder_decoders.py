"""Models with an encoder and a decoder that attends to it."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from tests.models.architectures.case import Case, ids
from tests.models.architectures.residual import resnet_macs
from tests.models.closed_forms import attention, convolution, convolved, linear

BATCH, LENGTH, OUTPUT = 2, 13, 7


def attend(batch: int, heads: int, size: int, width: int, queries: int, keys: int) -> int:
    """Query and output projections of the queries, key and value projections of the keys, and both products."""
    inner = heads * size
    projections = 2 * linear(batch * queries, width, inner) + 2 * linear(batch * keys, width, inner)
    return projections + attention(batch, heads, queries, keys, size)


def t5_macs(config: Any, batch: int, length: int, output: int) -> int:
    matrices = 3 if config.is_gated_act else 2
    heads = (batch, config.num_heads, config.d_kv, config.d_model)
    encoder = attend(*heads, length, length) + matrices * linear(batch * length, config.d_model, config.d_ff)
    decoder = attend(*heads, output, output) + attend(*heads, output, length)
    decoder += matrices * linear(batch * output, config.d_model, config.d_ff)
    head = linear(batch * output, config.d_model, config.vocab_size)
    return config.num_layers * encoder + config.num_decoder_layers * decoder + head


def t5(feed_forward: str) -> Case:
    config = transformers.T5Config(
        d_model=48, d_kv=10, d_ff=80, num_layers=2, num_decoder_layers=3, num_heads=4, vocab_size=101,
        feed_forward_proj=feed_forward,
    )  # fmt: skip
    inputs = {"input_ids": ids(BATCH, LENGTH), "decoder_input_ids": ids(BATCH, OUTPUT)}
    return Case(lambda: transformers.T5ForConditionalGeneration(config), inputs, t5_macs(config, BATCH, LENGTH, OUTPUT))


def transformer_macs(config: Any, batch: int, length: int, output: int) -> int:
    """The encoder and decoder layers of configs in the manner of BART."""
    width, heads, other = config.d_model, config.encoder_attention_heads, config.decoder_attention_heads
    encoder = attend(batch, heads, width // heads, width, length, length)
    encoder += 2 * linear(batch * length, width, config.encoder_ffn_dim)
    decoder = attend(batch, other, width // other, width, output, output)
    decoder += attend(batch, other, width // other, width, output, length)
    decoder += 2 * linear(batch * output, width, config.decoder_ffn_dim)
    return config.encoder_layers * encoder + config.decoder_layers * decoder


def whisper_macs(config: Any, batch: int, output: int) -> int:
    width, length = config.d_model, config.max_source_positions
    stem = convolution(batch * 2 * length, config.num_mel_bins, width, (3,))
    stem += convolution(batch * length, width, width, (3,))
    return stem + transformer_macs(config, batch, length, output) + linear(batch * output, width, config.vocab_size)


def whisper() -> Case:
    config = transformers.WhisperConfig(
        d_model=48, encoder_layers=2, decoder_layers=3, encoder_attention_heads=4, decoder_attention_heads=6,
        encoder_ffn_dim=80, decoder_ffn_dim=72, num_mel_bins=20, max_source_positions=30, max_target_positions=16,
        vocab_size=101, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    inputs = {"input_features": torch.zeros(BATCH, 20, 60), "decoder_input_ids": ids(BATCH, OUTPUT)}
    return Case(
        lambda: transformers.WhisperForConditionalGeneration(config), inputs, whisper_macs(config, BATCH, OUTPUT)
    )


def detr_macs(config: Any, batch: int, side: int) -> int:
    width, queries = config.d_model, config.num_queries
    for _ in range(5):  # stem, pooling and three stages halve the image, rounding up
        side = convolved(side, 3, stride=2, padding=1)
    features = side * side
    projection = linear(batch * features, config.backbone_config.hidden_sizes[-1], width)
    heads = linear(batch * queries, width, config.num_labels + 1) + linear(batch * queries, width, 2 * width + 4)
    return projection + transformer_macs(config, batch, features, queries) + heads


def detr() -> Case:
    backbone = transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[32, 48, 64, 80], depths=[2, 1, 2, 1], out_features=["stage4"]
    )
    config = transformers.DetrConfig(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=backbone,
        d_model=48, encoder_layers=2, decoder_layers=3, encoder_attention_heads=4, decoder_attention_heads=6,
        encoder_ffn_dim=80, decoder_ffn_dim=72, num_queries=11, num_labels=9,
    )  # fmt: skip
    macs = resnet_macs(backbone, 1, 97) + detr_macs(config, 1, 97)
    return Case(lambda: transformers.DetrForObjectDetection(config), {"pixel_values": torch.zeros(1, 3, 97, 97)}, macs)


ENCODER_DECODERS = {"t5": t5("relu"), "t5-gated": t5("gated-gelu"), "whisper": whisper(), "detr": detr()}
