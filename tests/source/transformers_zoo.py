"""Small transformers models of many families, as their configs make them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import transformers

from torchgauge.checkpoint import open_checkpoint
from torchgauge.source import Shape, model_shapes

TEXT = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 333,
}  # fmt: skip
GROUPED = TEXT | {"num_key_value_heads": 2}
IMAGE = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
BOTH_SIDES = {
    "d_model": 64, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96, "decoder_ffn_dim": 80, "vocab_size": 333,
}  # fmt: skip
T5 = {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4, "vocab_size": 333}
SPEECH = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
LISTENING = BOTH_SIDES | {
    "num_mel_bins": 16, "max_source_positions": 50, "max_target_positions": 40, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip

GPT_NEO = {
    "hidden_size": 64, "num_layers": 4, "num_heads": 2, "vocab_size": 333, "max_position_embeddings": 77,
    "attention_types": [[["global", "local"], 2]],
}  # fmt: skip
LATENT = TEXT | {
    "num_hidden_layers": 3, "num_key_value_heads": 4, "kv_lora_rank": 24, "qk_nope_head_dim": 16, "v_head_dim": 20,
    "qk_rope_head_dim": 8, "n_routed_experts": 8, "n_shared_experts": 2, "moe_intermediate_size": 40,
    "first_k_dense_replace": 1, "num_experts_per_tok": 2,
}  # fmt: skip
MAMBA2 = {
    "num_heads": 8, "head_dim": 16, "vocab_size": 333, "hidden_size": 64, "state_size": 24, "num_hidden_layers": 2,
    "n_groups": 2,
}  # fmt: skip

FAMILIES: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": GROUPED,
    "MixtralForCausalLM": GROUPED | {"num_local_experts": 4},
    "Qwen2ForCausalLM": GROUPED,
    "Qwen3ForCausalLM": GROUPED | {"head_dim": 16},
    "GemmaForCausalLM": GROUPED | {"head_dim": 16},
    "GPTNeoXForCausalLM": TEXT,
    "OPTForCausalLM": {k: v for k, v in TEXT.items() if k != "intermediate_size"}
    | {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "BloomForCausalLM": {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 333},
    "FalconForCausalLM": {k: v for k, v in TEXT.items() if k != "intermediate_size"},
    "BertForMaskedLM": TEXT,
    "DistilBertModel": {"dim": 64, "hidden_dim": 96, "n_layers": 2, "n_heads": 4, "vocab_size": 333},
    "AlbertModel": TEXT | {"embedding_size": 32},
    "T5ForConditionalGeneration": T5,
    "ViTForImageClassification": IMAGE,
    "WhisperForConditionalGeneration": LISTENING,
    "MambaForCausalLM": {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 333, "state_size": 8},
}
# What the default config has no names for, or what cannot be found number by number.
HARD_FAMILIES: dict[str, dict[str, Any]] = {
    "GPTNeoForCausalLM": GPT_NEO,
    "DeepseekV2ForCausalLM": LATENT | {"q_lora_rank": None},
    "DeepseekV3ForCausalLM": LATENT | {"q_lora_rank": 40, "n_group": 2, "topk_group": 1},
    "Mamba2ForCausalLM": MAMBA2,
    "Qwen3MoeForCausalLM": GROUPED | {"head_dim": 32, "num_experts": 8, "moe_intermediate_size": 48},
    "GptOssForCausalLM": GROUPED | {"head_dim": 16, "num_local_experts": 4},
    "DebertaV2Model": TEXT
    | {"relative_attention": True, "position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True}
    | {"pos_att_type": ["p2c", "c2p"], "type_vocab_size": 0, "position_biased_input": False},
    "Llama4ForCausalLM": GROUPED
    | {"intermediate_size_mlp": 80, "num_local_experts": 4, "head_dim": 16, "interleave_moe_layer_step": 2}
    | {"num_hidden_layers": 4},
}
MORE_FAMILIES: dict[str, dict[str, Any]] = {
    "BartForConditionalGeneration": BOTH_SIDES,
    "BertForSequenceClassification": TEXT | {"num_labels": 5},
    "CLIPModel": {"text_config": TEXT, "vision_config": IMAGE, "projection_dim": 48},
    "CLIPVisionModel": IMAGE,
    "ConvNextModel": {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1]},
    "DeiTModel": IMAGE,
    "Dinov2Model": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 28},
    "ElectraModel": TEXT | {"embedding_size": 32},
    "GPT2LMHeadModel": {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 321, "n_positions": 77},
    "Phi3ForCausalLM": GROUPED | {"pad_token_id": 0},
    "PhiForCausalLM": TEXT,
    "RobertaForMaskedLM": TEXT,
    "Wav2Vec2ForCTC": SPEECH
    | {"vocab_size": 32, "feat_extract_norm": "layer", "do_stable_layer_norm": True, "conv_bias": True},
    "Wav2Vec2Model": SPEECH,
    "BambaForCausalLM": GROUPED
    | {"num_hidden_layers": 4, "attn_layer_indices": [2], "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16},
    "BeitForImageClassification": IMAGE | {"use_relative_position_bias": True},
    "DbrxForCausalLM": {
        "d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 333,
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0},
        "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 64},
    },
    "ElectraForPreTraining": TEXT | {"embedding_size": 64},
    "FalconForCausalLM": {k: v for k, v in TEXT.items() if k != "intermediate_size"}
    | {"alibi": True, "bias": True, "multi_query": False, "parallel_attn": False},
    "Gemma3ForConditionalGeneration": {
        "text_config": GROUPED | {"head_dim": 16}, "vision_config": IMAGE, "mm_tokens_per_image": 4,
    },
    "JambaForCausalLM": GROUPED | {"num_experts": 4, "num_hidden_layers": 8},
    "LlavaForConditionalGeneration": {
        "text_config": GROUPED | {"model_type": "llama"}, "vision_config": IMAGE | {"model_type": "clip_vision_model"},
    },
    "NemotronForCausalLM": GROUPED,
    "OPTForCausalLM": {k: v for k, v in TEXT.items() if k != "intermediate_size"}
    | {"ffn_dim": 96, "word_embed_proj_dim": 32, "do_layer_norm_before": False},
    "Qwen2VLForConditionalGeneration": {
        "text_config": GROUPED, "vision_config": {"depth": 2, "embed_dim": 32, "num_heads": 2, "hidden_size": 64},
    },
    "RecurrentGemmaForCausalLM": GROUPED | {"lru_width": 64, "num_hidden_layers": 3},
    "SegformerForSemanticSegmentation": {
        "depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32], "num_attention_heads": [1, 2, 3, 4],
        "decoder_hidden_size": 24,
    },
    "SwinForImageClassification": {
        "embed_dim": 16, "depths": [1, 2], "num_heads": [2, 4], "window_size": 4, "image_size": 32, "patch_size": 4,
    },
}  # fmt: skip


def build(name: str, settings: dict[str, Any]) -> Any:
    model_class = getattr(transformers, name)
    return model_class(model_class.config_class(**settings)).eval()


def stored(model: Any, folder: Path) -> dict[str, Shape]:
    """The tensors as transformers writes them."""
    model.save_pretrained(folder)
    return model_shapes(open_checkpoint(folder / "model.safetensors"))
