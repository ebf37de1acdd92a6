"""Models of billions of parameters, which no machine here could hold, at full size on the meta device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from tests.models.architectures.case import Case, ids
from tests.models.architectures.decoders import gpt2_macs, llama_macs, mamba_macs, mixtral_macs
from tests.models.architectures.encoder_decoders import detr_macs, t5_macs, whisper_macs
from tests.models.architectures.encoders import clip_macs, encoder_layers
from tests.models.architectures.residual import resnet_macs
from tests.models.checked import analyze_checked, on_meta

LLAMA_7B: dict[str, Any] = {}
LLAMA_70B = {
    "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8,
}  # fmt: skip


def llama_params(config: Any) -> int:
    width, kv_width = config.hidden_size, config.num_key_value_heads * config.head_dim
    layer = 2 * width * width + 2 * width * kv_width + 3 * width * config.intermediate_size + 2 * width
    return config.num_hidden_layers * layer + 2 * config.vocab_size * width + width


@pytest.mark.parametrize(
    ("options", "params"), [(LLAMA_7B, 6_738_415_616), (LLAMA_70B, 68_976_648_192)], ids=["7B", "70B"]
)
def test_a_llama_at_full_size(options: dict[str, Any], params: int) -> None:
    config = transformers.LlamaConfig(**options)
    analysis = analyze_checked(on_meta(transformers.LlamaForCausalLM, config), inputs=ids(1, 2048))
    assert analysis.totals.params == llama_params(config) == params
    assert analysis.totals.macs == llama_macs(config, 1, 2048)


def test_a_gpt_of_175_billion_parameters() -> None:
    config = transformers.GPT2Config(n_layer=96, n_embd=12288, n_head=96, n_positions=2048)
    analysis = analyze_checked(on_meta(transformers.GPT2LMHeadModel, config), inputs=ids(1, 2048))
    width = config.n_embd
    # Per layer: 12 matrices of the width squared, biases 9 and norms 4 times the width; embeddings; the last norm.
    layers = 96 * (12 * width * width + 13 * width)
    assert analysis.totals.params == layers + (config.vocab_size + 2048) * width + 2 * width
    assert analysis.totals.macs == gpt2_macs(config, 1, 2048)


def test_the_activations_alive_at_once_do_not_grow_with_the_layers() -> None:
    """A residual stream is freed as it goes, apart from the cache of keys and values that a plain call fills."""
    shallow, deep = (
        analyze_checked(
            on_meta(transformers.LlamaForCausalLM, transformers.LlamaConfig(num_hidden_layers=layers)),
            inputs=ids(1, 512),
            kwargs={"use_cache": False},
        )
        for layers in (2, 8)
    )
    assert deep.totals.peak_activation_bytes == shallow.totals.peak_activation_bytes


def gpt2() -> Case:
    config = transformers.GPT2Config()
    return Case(lambda: transformers.GPT2LMHeadModel(config), {"input_ids": ids(1, 1024)}, gpt2_macs(config, 1, 1024))


def bert() -> Case:
    config = transformers.BertConfig()
    macs = encoder_layers(config, 8, 512) + 8 * config.hidden_size**2
    return Case(lambda: transformers.BertModel(config), {"input_ids": ids(8, 512)}, macs)


def t5() -> Case:
    config = transformers.T5Config()
    inputs = {"input_ids": ids(2, 512), "decoder_input_ids": ids(2, 128)}
    return Case(lambda: transformers.T5ForConditionalGeneration(config), inputs, t5_macs(config, 2, 512, 128))


def mixtral() -> Case:
    config = transformers.MixtralConfig()
    macs = mixtral_macs(config, 1, 1024)
    return Case(lambda: transformers.MixtralForCausalLM(config), {"input_ids": ids(1, 1024)}, macs, "bfloat16")


def whisper() -> Case:
    config = transformers.WhisperConfig(
        d_model=1280, encoder_layers=32, decoder_layers=32, encoder_attention_heads=20, decoder_attention_heads=20,
        encoder_ffn_dim=5120, decoder_ffn_dim=5120, num_mel_bins=128,
    )  # fmt: skip
    inputs = {"input_features": torch.zeros(1, 128, 3000, device="meta"), "decoder_input_ids": ids(1, 64)}
    return Case(lambda: transformers.WhisperForConditionalGeneration(config), inputs, whisper_macs(config, 1, 64))


def clip() -> Case:
    config = transformers.CLIPConfig()
    inputs = {"input_ids": ids(4, 77), "pixel_values": torch.zeros(2, 3, 224, 224, device="meta")}
    return Case(lambda: transformers.CLIPModel(config), inputs, clip_macs(config, 4, 77, 2))


def detr() -> Case:
    backbone = transformers.ResNetConfig(out_features=["stage4"])
    config = transformers.DetrConfig(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=backbone
    )
    inputs = {"pixel_values": torch.zeros(1, 3, 800, 800, device="meta")}
    macs = resnet_macs(backbone, 1, 800) + detr_macs(config, 1, 800)
    return Case(lambda: transformers.DetrForObjectDetection(config), inputs, macs)


def mamba() -> Case:
    config = transformers.MambaConfig()
    return Case(lambda: transformers.MambaForCausalLM(config), {"input_ids": ids(1, 16)}, mamba_macs(config, 1, 16))


@pytest.mark.parametrize("case", [gpt2, bert, t5, mixtral, whisper, clip, detr, mamba], ids=lambda case: case.__name__)
def test_other_architectures_at_full_size(case: Any) -> None:
    full: Case = case()
    assert analyze_checked(on_meta(full.build), **full.options).totals.macs == full.macs
