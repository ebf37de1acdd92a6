"""Parameters in all and per token of published mixtures of experts, in billions, as their authors give them."""

from __future__ import annotations

from typing import Any

import pytest

import torchgauge as tg
from tests.llm.zoo import on_meta

GPT_OSS = {"hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8,
           "head_dim": 64, "num_experts_per_tok": 4, "vocab_size": 201088}  # fmt: skip
DEEPSEEK = {"hidden_size": 5120, "intermediate_size": 12288, "moe_intermediate_size": 1536, "num_hidden_layers": 60,
            "num_attention_heads": 128, "n_routed_experts": 160, "n_shared_experts": 2, "num_experts_per_tok": 6,
            "first_k_dense_replace": 1, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128, "v_head_dim": 128, "vocab_size": 102400, "n_group": 8,
            "topk_group": 3}  # fmt: skip
LLAMA4 = {"hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_hidden_layers": 48,
          "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "num_experts_per_tok": 1,
          "vocab_size": 202048}  # fmt: skip
QWEN3 = {"num_experts": 128, "num_experts_per_tok": 8, "num_key_value_heads": 4, "head_dim": 128,
         "vocab_size": 151936}  # fmt: skip
# Name: class, settings of the published config, billions in all and per token.
PUBLISHED: dict[str, tuple[str, dict[str, Any], float, float]] = {
    "Mixtral 8x7B": ("Mixtral", {"num_hidden_layers": 32}, 46.7, 12.9),
    "Mixtral 8x22B": ("Mixtral", {"hidden_size": 6144, "intermediate_size": 16384, "num_hidden_layers": 56,
                                  "num_attention_heads": 48, "vocab_size": 32768}, 141, 39),
    "DeepSeek V2": ("DeepseekV2", DEEPSEEK, 236, 21),
    "DeepSeek V2 Lite": ("DeepseekV2", DEEPSEEK | {
        "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408, "num_hidden_layers": 27,
        "num_attention_heads": 16, "n_routed_experts": 64, "q_lora_rank": None, "n_group": 1, "topk_group": 1,
    }, 15.7, 2.4),
    "DeepSeek V3": ("DeepseekV3", {}, 671, 37),
    "Qwen1.5 MoE A2.7B": ("Qwen2Moe", {
        "hidden_size": 2048, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "num_experts": 60,
        "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 16, "num_experts_per_tok": 4,
    }, 14.3, 2.7),
    "Qwen2 57B A14B": ("Qwen2Moe", {
        "hidden_size": 3584, "moe_intermediate_size": 2560, "shared_expert_intermediate_size": 20480,
        "num_experts": 64, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
        "num_experts_per_tok": 8,
    }, 57.4, 14),
    "Qwen3 30B A3B": ("Qwen3Moe", QWEN3 | {"hidden_size": 2048, "moe_intermediate_size": 768,
                                           "num_hidden_layers": 48, "num_attention_heads": 32}, 30.5, 3.3),
    "Qwen3 235B A22B": ("Qwen3Moe", QWEN3 | {"hidden_size": 4096, "moe_intermediate_size": 1536,
                                             "num_hidden_layers": 94, "num_attention_heads": 64}, 235, 22),
    "gpt-oss 20B": ("GptOss", GPT_OSS | {"num_hidden_layers": 24, "num_local_experts": 32}, 20.9, 3.6),
    "gpt-oss 120B": ("GptOss", GPT_OSS | {"num_hidden_layers": 36, "num_local_experts": 128}, 116.8, 5.1),
    "OLMoE 1B 7B": ("Olmoe", {"intermediate_size": 1024}, 6.9, 1.3),
    "Phi 3.5 MoE": ("Phimoe", {"hidden_size": 4096, "intermediate_size": 6400, "num_hidden_layers": 32,
                               "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 16,
                               "num_experts_per_tok": 2, "vocab_size": 32064}, 41.9, 6.6),
    "Llama 4 Scout": ("Llama4", LLAMA4 | {"num_local_experts": 16, "interleave_moe_layer_step": 1}, 109, 17),
    "Llama 4 Maverick": ("Llama4", LLAMA4 | {"num_local_experts": 128, "interleave_moe_layer_step": 2}, 400, 17),
    "Jamba v0.1": ("Jamba", {}, 52, 12),
    "Granite 3.0 3B A800M": ("GraniteMoe", {
        "hidden_size": 1536, "intermediate_size": 512, "num_hidden_layers": 32, "num_attention_heads": 24,
        "num_key_value_heads": 8, "num_local_experts": 40, "num_experts_per_tok": 8, "vocab_size": 49155,
        "tie_word_embeddings": True,
    }, 3.3, 0.8),
}  # fmt: skip
# Their authors leave the embedding out of what a token reaches: it is looked up, not multiplied with.
WITHOUT_EMBEDDING = ("gpt-oss 20B", "gpt-oss 120B", "DeepSeek V2 Lite", "Granite 3.0 3B A800M")
FAST = ("Mixtral 8x7B", "DeepSeek V3", "gpt-oss 20B")


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in PUBLISHED]
)
def test_parameters_of_a_token_are_the_published_ones(name: str) -> None:
    family, settings, total, active = PUBLISHED[name]
    found = tg.llm(on_meta(family, **settings))
    assert found.params / 1e9 == pytest.approx(total, rel=0.02)
    left_out = found.facts["embedding_params"] if name in WITHOUT_EMBEDDING else 0
    # Published to two digits at best.
    assert (found.active_params - left_out) / 1e9 == pytest.approx(active, rel=0.05, abs=0.06)
    assert any(row["feed_forward"] == "mixture of experts" for row in found.layers)
