"""Encoders of text, of images and of both."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from tests.models.architectures.case import Case, ids
from tests.models.closed_forms import attention, convolution, linear

BATCH, LENGTH = 2, 13


def encoder_layers(config: Any, batch: int, length: int) -> int:
    """Full self-attention and a feed-forward part of two matrices, layer by layer."""
    tokens, width = batch * length, config.hidden_size
    layer = linear(tokens, width, 4 * width) + 2 * linear(tokens, width, config.intermediate_size)
    layer += attention(batch, config.num_attention_heads, length, length, width // config.num_attention_heads)
    return config.num_hidden_layers * layer


def bert_config() -> Any:
    return transformers.BertConfig(
        hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=80, vocab_size=101
    )


def bert() -> Case:
    config = bert_config()
    pooler = linear(BATCH, config.hidden_size, config.hidden_size)
    return Case(
        lambda: transformers.BertModel(config),
        {"input_ids": ids(BATCH, LENGTH)},
        encoder_layers(config, BATCH, LENGTH) + pooler,
    )


def bert_for_masked_tokens() -> Case:
    config = bert_config()
    head = linear(BATCH * LENGTH, config.hidden_size, config.hidden_size + config.vocab_size)
    inputs = {"input_ids": ids(BATCH, LENGTH), "attention_mask": torch.ones(BATCH, LENGTH, dtype=torch.int64)}
    return Case(lambda: transformers.BertForMaskedLM(config), inputs, encoder_layers(config, BATCH, LENGTH) + head)


def clip_macs(config: Any, texts: int, length: int, images: int) -> int:
    text, vision, shared = config.text_config, config.vision_config, config.projection_dim
    patches = (vision.image_size // vision.patch_size) ** 2
    stem = convolution(images * patches, 3, vision.hidden_size, (vision.patch_size, vision.patch_size))
    towers = encoder_layers(text, texts, length) + encoder_layers(vision, images, patches + 1)
    projections = linear(texts, text.hidden_size, shared) + linear(images, vision.hidden_size, shared)
    return stem + towers + projections + linear(texts, shared, images)


def clip() -> Case:
    config = transformers.CLIPConfig(
        text_config={
            "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 80,
            "vocab_size": 101, "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 20,
        },
        vision_config={
            "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 8, "intermediate_size": 96,
            "image_size": 28, "patch_size": 7,
        },
        projection_dim=40,
    )  # fmt: skip
    inputs = {"input_ids": ids(5, LENGTH), "pixel_values": torch.zeros(3, 3, 28, 28)}
    return Case(lambda: transformers.CLIPModel(config), inputs, clip_macs(config, 5, LENGTH, 3))


ENCODERS = {"bert": bert(), "bert-masked": bert_for_masked_tokens(), "clip": clip()}
