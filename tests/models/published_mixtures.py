"""Mixtures of experts as published: config values, active parameters in billions, and what that figure leaves out.

The config values are those of the `config.json` of the published weights; what is not given is the default of the
config class. Figures are from the model cards and technical reports named with them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

# A figure may leave out the input embedding, or input and output embeddings; tied ones are one.
NOTHING, INPUT, BOTH = 0, 1, 2


class Published(NamedTuple):
    family: str  # of the classes: <family>Config, <family>ForCausalLM
    active_billions: float
    left_out: int
    config: dict[str, Any]


def deepseek(vocab: int, width: int, inner: int, expert: int, layers: int, heads: int, **rest: Any) -> dict[str, Any]:
    return {
        "vocab_size": vocab, "hidden_size": width, "intermediate_size": inner, "moe_intermediate_size": expert,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": heads, **rest,
    }  # fmt: skip


def grouped(vocab: int, width: int, inner: int, layers: int, heads: int, shared: int, **rest: Any) -> dict[str, Any]:
    return {
        "vocab_size": vocab, "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": shared, **rest,
    }  # fmt: skip


LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
GLM = {"head_dim": 128, "n_shared_experts": 1, "num_experts_per_tok": 8, "attention_bias": True}

MIXTURES: dict[str, Published] = {
    # Mixtral of Experts (2024), table 1; Mistral AI's announcement of 8x22B
    "Mixtral-8x7B": Published("Mixtral", 12.9, NOTHING, {}),
    "Mixtral-8x22B": Published("Mixtral", 39, NOTHING, grouped(32768, 6144, 16384, 56, 48, 8)),
    # Qwen's model cards
    "Qwen1.5-MoE-A2.7B": Published(
        "Qwen2Moe", 2.7, NOTHING,
        grouped(151936, 2048, 5632, 24, 16, 16, moe_intermediate_size=1408, shared_expert_intermediate_size=5632,
                num_experts=60, num_experts_per_tok=4),
    ),
    "Qwen2-57B-A14B": Published(
        "Qwen2Moe", 14, NOTHING,
        grouped(151936, 3584, 18944, 28, 28, 4, moe_intermediate_size=2560, shared_expert_intermediate_size=20480,
                num_experts=64, num_experts_per_tok=8),
    ),
    "Qwen3-30B-A3B": Published(
        "Qwen3Moe", 3.3, NOTHING,
        grouped(151936, 2048, 6144, 48, 32, 4, moe_intermediate_size=768, head_dim=128, num_experts=128,
                num_experts_per_tok=8),
    ),
    "Qwen3-235B-A22B": Published(
        "Qwen3Moe", 22, NOTHING,
        grouped(151936, 4096, 12288, 94, 64, 4, moe_intermediate_size=1536, head_dim=128, num_experts=128,
                num_experts_per_tok=8),
    ),
    # DeepSeek-V2 (2024), DeepSeek-V3 (2024), Kimi K2 (2025): technical reports
    "DeepSeek-V2": Published(
        "DeepseekV2", 21, NOTHING,
        deepseek(102400, 5120, 12288, 1536, 60, 128, n_routed_experts=160, n_shared_experts=2, num_experts_per_tok=6,
                 n_group=8, topk_group=3, topk_method="group_limited_greedy", first_k_dense_replace=1,
                 q_lora_rank=1536, **LATENT),
    ),
    "DeepSeek-V2-Lite": Published(
        "DeepseekV2", 2.4, INPUT,
        deepseek(102400, 2048, 10944, 1408, 27, 16, n_routed_experts=64, n_shared_experts=2, num_experts_per_tok=6,
                 n_group=1, topk_group=1, topk_method="greedy", first_k_dense_replace=1, q_lora_rank=None, **LATENT),
    ),
    "DeepSeek-V3": Published("DeepseekV3", 37, NOTHING, {}),
    "Kimi-K2": Published(
        "DeepseekV3", 32.6, NOTHING,
        deepseek(163840, 7168, 18432, 2048, 61, 64, n_routed_experts=384, n_group=1, topk_group=1,
                 first_k_dense_replace=1),
    ),
    # GLM-4.5 (2025), table 1: "not word embeddings and the output layer"
    "GLM-4.5": Published(
        "Glm4Moe", 32, BOTH,
        grouped(151552, 5120, 12288, 92, 96, 8, moe_intermediate_size=1536, n_routed_experts=160,
                first_k_dense_replace=3, use_qk_norm=True, **GLM),
    ),
    "GLM-4.5-Air": Published(
        "Glm4Moe", 12, BOTH,
        grouped(151552, 4096, 10944, 46, 96, 8, moe_intermediate_size=1408, n_routed_experts=128,
                first_k_dense_replace=1, **GLM),
    ),
    "dots.llm1": Published(  # technical report (2025)
        "Dots1", 14, NOTHING,
        deepseek(152064, 4096, 10944, 1408, 62, 32, n_routed_experts=128, n_shared_experts=2, num_experts_per_tok=6,
                 first_k_dense_replace=1, n_group=1, topk_group=1),
    ),
    "Phi-3.5-MoE": Published(  # Phi-3 technical report (2024)
        "Phimoe", 6.6, NOTHING,
        grouped(32064, 4096, 6400, 32, 32, 8, num_local_experts=16, num_experts_per_tok=2, attention_bias=True,
                lm_head_bias=True),
    ),
    "DBRX": Published(  # Databricks' announcement (2024)
        "Dbrx", 36, NOTHING,
        {"d_model": 6144, "n_heads": 48, "n_layers": 40, "vocab_size": 100352, "max_seq_len": 32768,
         "attn_config": {"kv_n_heads": 8, "clip_qkv": 8, "rope_theta": 5e5},
         "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4, "moe_jitter_eps": 0}},
    ),
    # gpt-oss model card (2025), table 1: "unembedding parameters are counted, but not embeddings"
    "gpt-oss-120b": Published("GptOss", 5.13, INPUT, {}),
    "gpt-oss-20b": Published("GptOss", 3.61, INPUT, {"num_hidden_layers": 24, "num_local_experts": 32}),
    # Llama 4 model card
    "Llama-4-Scout": Published("Llama4", 17, NOTHING, {}),
    "Llama-4-Maverick": Published(
        "Llama4", 17, NOTHING, {"num_local_experts": 128, "interleave_moe_layer_step": 2}
    ),
    "OLMoE-1B-7B": Published(  # OLMoE (2024)
        "Olmoe", 1.3, NOTHING, grouped(50304, 2048, 1024, 16, 16, 16, num_experts=64, num_experts_per_tok=8)
    ),
    "Jamba-v0.1": Published("Jamba", 12, NOTHING, {}),  # Jamba (2024)
    # Granite model cards
    "granite-3.0-3b-a800m": Published(
        "GraniteMoe", 0.8, INPUT,
        grouped(49155, 1536, 512, 32, 24, 8, num_local_experts=40, num_experts_per_tok=8, tie_word_embeddings=True),
    ),
    "granite-4.0-h-small": Published(
        "GraniteMoeHybrid", 9, NOTHING,
        grouped(100352, 4096, 768, 40, 32, 8, shared_intermediate_size=1536, num_local_experts=72,
                num_experts_per_tok=10, mamba_n_heads=128, mamba_d_head=64, mamba_d_state=128, mamba_n_groups=1,
                tie_word_embeddings=True, position_embedding_type="nope",
                layer_types=["attention" if layer % 10 == 5 else "mamba" for layer in range(40)]),
    ),
    # MiniMax-01 (2025), MiniMax-M2 model card
    "MiniMax-Text-01": Published(
        "MiniMax", 45.9, BOTH,
        grouped(200064, 6144, 9216, 80, 64, 8, head_dim=128, num_local_experts=32, num_experts_per_tok=2,
                layer_types=["full_attention" if layer % 8 == 7 else "linear_attention" for layer in range(80)]),
    ),
    "MiniMax-M2": Published(
        "MiniMaxM2", 10, BOTH,
        grouped(200064, 3072, 1536, 62, 48, 8, head_dim=128, num_local_experts=256, num_experts_per_tok=8),
    ),
    "Hunyuan-A13B": Published(  # model card
        "HunYuanMoEV1", 13, NOTHING,
        grouped(128167, 4096, 3072, 32, 32, 8, head_dim=128, num_experts=64, moe_topk=8, tie_word_embeddings=True),
    ),
    # ERNIE 4.5 technical report (2025)
    "ERNIE-4.5-21B-A3B": Published("Ernie4_5_Moe", 3, BOTH, {}),
    "ERNIE-4.5-300B-A47B": Published(
        "Ernie4_5_Moe", 47, NOTHING,
        grouped(103424, 8192, 28672, 54, 64, 8, moe_intermediate_size=3584, moe_k=8, moe_num_experts=64,
                moe_num_shared_experts=0, moe_layer_start_index=3, tie_word_embeddings=False),
    ),
    "JetMoE-8B": Published(  # JetMoE (2024)
        "JetMoe", 2.2, BOTH,
        {"vocab_size": 32000, "hidden_size": 2048, "num_hidden_layers": 24, "num_key_value_heads": 16,
         "kv_channels": 128, "intermediate_size": 5632, "num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    "Solar-Open-100B": Published("SolarOpen", 12, NOTHING, {}),  # model card
}  # fmt: skip
