"""Configs of a few lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.bombs.running import Bomb
from torchgauge.source import torchvision_importable


def config(**settings: Any) -> Bomb:
    def build(folder: Path) -> list[str]:
        (folder / "config.json").write_text(json.dumps(settings))
        return [str(folder / "config.json"), "--no-progress"]

    return build


LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 64,
         "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 100}  # fmt: skip
BOMBS: dict[str, Bomb] = {
    "a_billion_layers": config(**LLAMA, num_hidden_layers=10**9),
    "a_million_layers": config(**LLAMA, num_hidden_layers=10**6),
    "ten_million_layers_by_kind": config(
        **{**LLAMA, "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"]}, num_hidden_layers=10**7
    ),
    "a_billion_experts": config(
        model_type="mixtral", architectures=["MixtralForCausalLM"], num_local_experts=10**9, num_hidden_layers=2
    ),
    "a_million_experts": config(
        model_type="switch_transformers", architectures=["SwitchTransformersForConditionalGeneration"],
        num_experts=10**6, num_layers=2, num_sparse_encoder_layers=1, d_model=64,
    ),
    "wide": config(**{**LLAMA, "hidden_size": 2**24, "vocab_size": 2**24}, num_hidden_layers=1),
    "a_billion_words": config(**{**LLAMA, "vocab_size": 10**9}, num_hidden_layers=1),
    "a_billion_labels": config(model_type="bert", architectures=["BertForSequenceClassification"], num_labels=10**9),
    "sixteen_million_labels": config(
        model_type="bert", architectures=["BertForSequenceClassification"], num_labels=16 * 10**6
    ),
    "sixteen_thousand_layers": config(**LLAMA, num_hidden_layers=16_000),
    "nested": config(
        model_type="clip", architectures=["CLIPModel"], text_config={"num_hidden_layers": 10**9},
        vision_config={"num_hidden_layers": 10**9},
    ),
    "nested_in_bounds": config(
        model_type="clip", architectures=["CLIPModel"], text_config={"num_hidden_layers": 10**6, "hidden_size": 64},
    ),
    "in_a_list": config(model_type="resnet", architectures=["ResNetModel"], depths=[10**9, 2, 2, 2]),
    "in_a_list_within_bounds": config(model_type="resnet", architectures=["ResNetModel"], depths=[10**7, 2, 2, 2]),
    "layers_of_experts": config(
        model_type="switch_transformers", architectures=["SwitchTransformersForConditionalGeneration"],
        num_experts=4000, num_layers=4000, num_sparse_encoder_layers=2000, d_model=64,
    ),
    "a_float": config(**LLAMA, num_hidden_layers=1e300),
}  # fmt: skip


def prepare() -> None:
    with torchvision_importable():
        from transformers import CLIPModel, LlamaForCausalLM, ResNetModel, SwitchTransformersForConditionalGeneration

    assert all((CLIPModel, LlamaForCausalLM, ResNetModel, SwitchTransformersForConditionalGeneration))
