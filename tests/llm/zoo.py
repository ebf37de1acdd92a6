"""Language models of small widths and the structure of the published ones, by architecture."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformers as hf
from torch import nn
from transformers.modeling_outputs import BaseModelOutput

from torchgauge.source import torchvision_importable

COMMON: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
    "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED: dict[str, Any] = COMMON | {"num_key_value_heads": 2}
MAMBA: dict[str, Any] = {
    "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 8, "mamba_d_conv": 4,
    "mamba_expand": 2, "mamba_chunk_size": 8,
}  # fmt: skip
MODELS: dict[str, Callable[[], nn.Module]] = {}


def architecture(name: str) -> Callable[[Callable[[], nn.Module]], Callable[[], nn.Module]]:
    def register(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        assert name not in MODELS
        MODELS[name] = make
        return make

    return register


def simple(name: str, model: str, config: str, **settings: Any) -> None:
    @architecture(name)
    def make() -> nn.Module:
        with warnings.catch_warnings(), torchvision_importable():
            warnings.simplefilter("ignore")  # torchvision's operators may not be those of this torch
            made: nn.Module = getattr(hf, model)._from_config(getattr(hf, config)(**settings)).eval()
        return made


def on_meta(family: str, **settings: Any) -> nn.Module:
    """A model of any size, without memory."""
    with warnings.catch_warnings(), torchvision_importable(), torch.device("meta"):
        warnings.simplefilter("ignore")
        config = getattr(hf, "Llama4TextConfig" if family == "Llama4" else f"{family}Config")(**settings)
        made: nn.Module = getattr(hf, f"{family}ForCausalLM")._from_config(config).eval()
    return made


def tensors_of(value: Any, seen: set[int] | None = None) -> Iterator[torch.Tensor]:
    """Every tensor that a cache object holds, in whatever attributes, each once."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_of(item, seen)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_of(item, seen)
    elif hasattr(value, "__dict__") and not isinstance(value, type | nn.Module | hf.PretrainedConfig):
        yield from tensors_of(vars(value), seen)


def nbytes(cache: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(cache))


def real_cache_bytes(
    model: nn.Module, tokens: int, *, sequences: int = 1, encoder_tokens: int = 0, steps: int = 0
) -> int:
    """The bytes of the model's own cache after a prefill, or after a shorter one and some decode steps."""
    prompt = torch.full((sequences, tokens - steps), 5)
    given: dict[str, Any] = {"use_cache": True}
    name = "input_ids"
    if model.config.is_encoder_decoder:  # type: ignore[union-attr]
        name = "decoder_input_ids"
        if model.main_input_name == "input_features":
            config: Any = model.config
            given["input_features"] = torch.randn(
                sequences,
                config.num_mel_bins,
                2 * config.max_source_positions,
                dtype=model.dtype,  # type: ignore
            )
        else:
            given["input_ids"] = torch.full((sequences, encoder_tokens), 5)
    with torch.no_grad():
        out = model(**{name: prompt}, **given)
        fed = next(key for key in ("past_key_values", "cache_params", "state") if out.get(key) is not None)
        for _ in range(steps):
            if "encoder_last_hidden_state" in out and out.encoder_last_hidden_state is not None:
                encoded = BaseModelOutput(last_hidden_state=out.encoder_last_hidden_state)
                given = {"use_cache": True, "encoder_outputs": encoded}
            cache = out[fed]
            out = model(**{name: prompt[:, :1], fed: cache}, **given)
    return nbytes(out[fed])


simple("llama", "LlamaForCausalLM", "LlamaConfig", **GROUPED, dtype="bfloat16")
simple("mistral", "MistralForCausalLM", "MistralConfig", **GROUPED, sliding_window=10)
simple("gemma2", "Gemma2ForCausalLM", "Gemma2Config", **GROUPED, head_dim=8, sliding_window=10)
simple("gemma3", "Gemma3ForCausalLM", "Gemma3TextConfig", **GROUPED | {"num_hidden_layers": 7}, head_dim=8,
       sliding_window=10)  # fmt: skip
simple("qwen2", "Qwen2ForCausalLM", "Qwen2Config", **GROUPED)
simple("qwen3", "Qwen3ForCausalLM", "Qwen3Config", **GROUPED, head_dim=16)
simple("qwen3_next", "Qwen3NextForCausalLM", "Qwen3NextConfig", **GROUPED, head_dim=8, linear_num_key_heads=2,
       linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8, num_experts=4, num_experts_per_tok=2,
       moe_intermediate_size=16, shared_expert_intermediate_size=16, decoder_sparse_step=1)  # fmt: skip
simple("phi", "PhiForCausalLM", "PhiConfig", **COMMON)
simple("gpt_neox", "GPTNeoXForCausalLM", "GPTNeoXConfig", **COMMON)
simple("falcon", "FalconForCausalLM", "FalconConfig", vocab_size=96, hidden_size=32, num_hidden_layers=3,
       num_attention_heads=4, new_decoder_architecture=False, multi_query=True, alibi=False,
       pad_token_id=0)  # fmt: skip
_DEEPSEEK = COMMON | {
    "num_key_value_heads": 4, "q_lora_rank": 12, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8,
    "v_head_dim": 8, "n_routed_experts": 8, "n_shared_experts": 1, "moe_intermediate_size": 16, "n_group": 2,
    "topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
}  # fmt: skip
simple("deepseek_v2", "DeepseekV2ForCausalLM", "DeepseekV2Config", **_DEEPSEEK)
simple("deepseek_v3", "DeepseekV3ForCausalLM", "DeepseekV3Config", **_DEEPSEEK, dtype="bfloat16")
simple("mixtral", "MixtralForCausalLM", "MixtralConfig", **GROUPED, num_local_experts=4, num_experts_per_tok=2)
simple("gpt_oss", "GptOssForCausalLM", "GptOssConfig", **GROUPED, head_dim=8, sliding_window=10, num_local_experts=4,
       num_experts_per_tok=2)  # fmt: skip
simple("jamba", "JambaForCausalLM", "JambaConfig", **GROUPED, attn_layer_period=2, attn_layer_offset=1,
       expert_layer_period=2, expert_layer_offset=1, num_experts=4, num_experts_per_tok=2, mamba_d_state=8,
       mamba_d_conv=4, mamba_expand=2, mamba_dt_rank=4, use_mamba_kernels=False)  # fmt: skip
simple("bamba", "BambaForCausalLM", "BambaConfig", **GROUPED, attn_layer_indices=[1, 3], **MAMBA)
simple("zamba2", "Zamba2ForCausalLM", "Zamba2Config", **COMMON, num_key_value_heads=4, mamba_d_state=8, mamba_d_conv=4,
       mamba_expand=2, mamba_ngroups=1, n_mamba_heads=4, mamba_headdim=16, chunk_size=8, num_mem_blocks=1,
       layers_block_type=["mamba", "hybrid", "mamba", "hybrid"], use_mem_rope=False, adapter_rank=4)  # fmt: skip
simple("mamba", "MambaForCausalLM", "MambaConfig", vocab_size=96, hidden_size=32, state_size=8, num_hidden_layers=4,
       conv_kernel=4, expand=2, time_step_rank=4, pad_token_id=0)  # fmt: skip
simple("mamba2", "Mamba2ForCausalLM", "Mamba2Config", vocab_size=96, hidden_size=32, state_size=8, num_hidden_layers=4,
       conv_kernel=4, expand=2, num_heads=4, head_dim=16, n_groups=1, chunk_size=8, pad_token_id=0)  # fmt: skip
simple("rwkv", "RwkvForCausalLM", "RwkvConfig", vocab_size=96, context_length=256, hidden_size=32, num_hidden_layers=4)
simple("whisper", "WhisperForConditionalGeneration", "WhisperConfig", vocab_size=96, num_mel_bins=8, d_model=32,
       encoder_layers=2, decoder_layers=3, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48,
       decoder_ffn_dim=48, max_source_positions=12, max_target_positions=64, pad_token_id=0, bos_token_id=1,
       eos_token_id=2, decoder_start_token_id=1)  # fmt: skip
simple("t5", "T5ForConditionalGeneration", "T5Config", vocab_size=96, d_model=32, d_kv=8, d_ff=48, num_layers=3,
       num_heads=4, pad_token_id=0, decoder_start_token_id=0)  # fmt: skip
simple("llama4", "Llama4ForCausalLM", "Llama4TextConfig", **GROUPED, head_dim=8, attention_chunk_size=10,
       intermediate_size_mlp=48, num_local_experts=4, num_experts_per_tok=1, interleave_moe_layer_step=2)  # fmt: skip
simple("cohere2", "Cohere2ForCausalLM", "Cohere2Config", **GROUPED, sliding_window=10)

# Not used while the code was written: positions from tables, states next to a cache's entries, records of encoders.
_GPT: dict[str, Any] = {"vocab_size": 96, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}
_PAIR: dict[str, Any] = {
    "vocab_size": 96, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64,
    "pad_token_id": 0, "decoder_start_token_id": 1,
}  # fmt: skip
simple("gpt2", "GPT2LMHeadModel", "GPT2Config", **_GPT)
simple("gptj", "GPTJForCausalLM", "GPTJConfig", **_GPT, rotary_dim=8)
simple("gpt_bigcode", "GPTBigCodeForCausalLM", "GPTBigCodeConfig", **_GPT)
simple("opt", "OPTForCausalLM", "OPTConfig", vocab_size=96, hidden_size=32, ffn_dim=48, num_hidden_layers=3,
       num_attention_heads=4, max_position_embeddings=64, word_embed_proj_dim=32, pad_token_id=0)  # fmt: skip
simple("bloom", "BloomForCausalLM", "BloomConfig", vocab_size=96, hidden_size=32, n_layer=3, n_head=4)
simple("mpt", "MptForCausalLM", "MptConfig", vocab_size=96, d_model=32, n_layers=3, n_heads=4, max_seq_len=64)
simple("minimax", "MiniMaxForCausalLM", "MiniMaxConfig", **GROUPED | {"num_hidden_layers": 8}, num_local_experts=4,
       num_experts_per_tok=2, layer_types=["linear_attention", "full_attention"] * 4, block_size=8,
       head_dim=8)  # fmt: skip
simple("granite_hybrid", "GraniteMoeHybridForCausalLM", "GraniteMoeHybridConfig", **GROUPED, **MAMBA,
       layer_types=["mamba", "attention"] * 2, num_local_experts=4, num_experts_per_tok=2,
       shared_intermediate_size=32)  # fmt: skip
simple("falcon_h1", "FalconH1ForCausalLM", "FalconH1Config", **GROUPED, **MAMBA, head_dim=8, mamba_d_ssm=64)
simple("lfm2", "Lfm2ForCausalLM", "Lfm2Config", **GROUPED, layer_types=["conv", "full_attention"] * 2, conv_L_cache=3)
simple("exaone4", "Exaone4ForCausalLM", "Exaone4Config", **GROUPED, sliding_window=10, sliding_window_pattern=2)
simple("mbart", "MBartForConditionalGeneration", "MBartConfig", **_PAIR)
simple("pegasus", "PegasusForConditionalGeneration", "PegasusConfig", **_PAIR)
simple("led", "LEDForConditionalGeneration", "LEDConfig", **_PAIR | {"max_encoder_position_embeddings": 128},
       max_decoder_position_embeddings=64, attention_window=8)  # fmt: skip
simple("xlstm", "xLSTMForCausalLM", "xLSTMConfig", vocab_size=96, hidden_size=128, num_blocks=3, num_hidden_layers=3,
       num_heads=4, chunk_size=8)  # fmt: skip
# Their tables have as many rows as the config gives positions, of which the first or the last cannot be used.
simple("prophetnet", "ProphetNetForConditionalGeneration", "ProphetNetConfig", vocab_size=96, hidden_size=32,
       encoder_ffn_dim=48, decoder_ffn_dim=48, num_encoder_layers=3, num_decoder_layers=3,
       num_encoder_attention_heads=4, num_decoder_attention_heads=4, max_position_embeddings=64, pad_token_id=0,
       decoder_start_token_id=1)  # fmt: skip
simple("roberta", "RobertaForCausalLM", "RobertaConfig", **COMMON | {"max_position_embeddings": 66, "pad_token_id": 1},
       is_decoder=True)  # fmt: skip
# Keys and values are one tensor, next to compressed states.
simple("deepseek_v4", "DeepseekV4ForCausalLM", "DeepseekV4Config", **COMMON, moe_intermediate_size=16,
       num_key_value_heads=1, head_dim=16, q_lora_rank=16, num_experts_per_tok=2, n_routed_experts=4, o_groups=2,
       o_lora_rank=8, index_n_heads=2, index_head_dim=8, index_topk=4, sliding_window=10,
       layer_types=["sliding_attention", "sliding_attention", "sliding_attention", "heavily_compressed_attention"],
       mlp_layer_types=["moe"] * 4)  # fmt: skip
