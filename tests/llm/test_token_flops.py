"""FLOPs per token against closed forms and published figures."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import torchgauge as tg
from torchgauge.source.packages import torchvision_importable

with torchvision_importable():
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        LlamaConfig,
        LlamaForCausalLM,
        MambaConfig,
        MambaForCausalLM,
        MistralConfig,
        MistralForCausalLM,
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
    )

LAYERS, WIDTH, HEADS, KV_HEADS, HIDDEN, VOCABULARY, TOKENS = 3, 256, 8, 2, 688, 1000, 128
SIZES = {
    "hidden_size": WIDTH, "intermediate_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS, "vocab_size": VOCABULARY,
}  # fmt: skip
LAYER = 2 * WIDTH**2 * (1 + KV_HEADS / HEADS) + 3 * WIDTH * HIDDEN
MATRICES = LAYERS * LAYER + WIDTH * VOCABULARY
NORMS = (2 * LAYERS + 1) * WIDTH


def llama(**changes: Any) -> nn.Module:
    with torch.device("meta"):
        return LlamaForCausalLM(LlamaConfig(**SIZES, **changes)).eval()


def attention(keys: float) -> float:
    """FLOPs of scores and values for a token that reads so many keys in each layer."""
    return 4 * LAYERS * WIDTH * keys


def test_a_dense_model_costs_two_flops_for_each_element_of_its_matrices_and_twice_that_backwards() -> None:
    forward = 2 * MATRICES + attention(TOKENS)

    assert tg.flops_per_token(llama(), TOKENS, mode="inference") == forward
    assert tg.flops_per_token(llama(), TOKENS) == 3 * forward


def test_the_formula_of_palm_counts_norms_as_matrices() -> None:
    assert tg.flops_per_token(llama(), TOKENS, convention="palm") == 6 * (MATRICES + NORMS) + 3 * attention(TOKENS)


def test_the_formula_of_megatron_is_exact_for_grouped_queries_and_gates() -> None:
    exact = tg.flops_per_token(llama(), TOKENS)

    assert tg.flops_per_token(llama(), TOKENS, convention="megatron") == pytest.approx(exact, rel=1e-12)


def test_a_causal_mask_leaves_half_of_the_pairs() -> None:
    computed = 3 * (2 * MATRICES + attention((TOKENS + 1) / 2))

    for convention, more in (("exact", 0), ("palm", 6 * NORMS), ("megatron", 0)):
        found = tg.flops_per_token(llama(), TOKENS, convention=convention, attention="computed")
        assert found == pytest.approx(computed + more, rel=1e-12)


def test_a_sliding_window_leaves_its_tokens() -> None:
    window = 32
    with torch.device("meta"):
        model = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=window)).eval()
    keys = sum(min(at + 1, window) for at in range(TOKENS)) / TOKENS

    assert tg.flops_per_token(model, TOKENS) == 3 * (2 * MATRICES + attention(TOKENS))
    found = tg.flops_per_token(model, TOKENS, attention="computed")
    assert found == pytest.approx(3 * (2 * MATRICES + attention(keys)), rel=1e-12)


def test_dropout_of_the_weights_of_attention_does_not_hide_its_mask() -> None:
    width = 192
    with torch.device("meta"):
        model = GPT2LMHeadModel(GPT2Config(n_embd=width, n_layer=2, n_head=4, vocab_size=500))
    matrices, scores = 2 * 12 * width**2 + 500 * width, 4 * 2 * width

    assert tg.flops_per_token(model, TOKENS) == 3 * (2 * matrices + scores * TOKENS)
    found = tg.flops_per_token(model, TOKENS, attention="computed")
    assert found == pytest.approx(3 * (2 * matrices + scores * (TOKENS + 1) / 2), rel=1e-12)


def test_attention_that_is_several_ops_has_no_known_mask() -> None:
    model = llama(attn_implementation="eager")

    assert tg.flops_per_token(model, TOKENS, mode="inference") == 2 * MATRICES + attention(TOKENS)
    for convention in ("exact", "palm", "megatron"):
        with pytest.raises(tg.InputError, match="attention='full'"):
            tg.flops_per_token(model, TOKENS, mode="inference", attention="computed", convention=convention)


def test_frozen_matrices_get_no_gradient() -> None:
    model = llama()
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name == "lm_head.weight"

    forward = 2 * MATRICES + attention(TOKENS)
    assert tg.flops_per_token(model, TOKENS) == forward + 2 * WIDTH * VOCABULARY
    assert tg.flops_per_token(model, TOKENS, convention="palm") > 2.5 * forward


def test_recomputation_is_counted_where_it_is_asked_for() -> None:
    model = llama()
    model.gradient_checkpointing_enable()  # type: ignore[operator]
    model.train()
    once = tg.flops_per_token(model, TOKENS)
    again = tg.flops_per_token(model, TOKENS, recomputation=True)

    assert once == 3 * (2 * MATRICES + attention(TOKENS))
    # What runs again are the layers; the recomputation stops at the last result that backward needs.
    last = 2 * WIDTH * HIDDEN
    assert again == once + LAYERS * (2 * LAYER - last) + attention(TOKENS)


def test_experts_that_a_token_does_not_use_cost_nothing() -> None:
    experts, used, inner = 8, 2, 96
    sizes = SIZES | {"num_experts": experts, "num_experts_per_tok": used, "moe_intermediate_size": inner}
    with torch.device("meta"):
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, head_dim=WIDTH // HEADS)).eval()
    layer = 2 * WIDTH**2 * (1 + KV_HEADS / HEADS) + WIDTH * experts + used * 3 * WIDTH * inner
    forward = 2 * (LAYERS * layer + WIDTH * VOCABULARY) + attention(TOKENS)

    assert tg.flops_per_token(model, TOKENS) == 3 * forward


def test_a_model_without_attention_has_no_pairs() -> None:
    with torch.device("meta"):
        model = MambaForCausalLM(MambaConfig(hidden_size=64, num_hidden_layers=2, vocab_size=500)).eval()
    flops = {tg.flops_per_token(model, 16, mode="inference", attention=each) for each in ("full", "computed")}

    assert len(flops) == 1


@pytest.mark.slow
def test_a_mixture_of_experts_costs_what_torchtitan_publishes() -> None:
    """Qwen3 30B-A3B at 8,192 tokens: 37,578,559,488 in pytorch/torchtitan#4300, which found 192,856,412,160 for the
    same model where all experts were counted."""
    sizes = {
        "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 48,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
        "num_experts_per_tok": 8, "vocab_size": 151936,
    }  # fmt: skip
    with torch.device("meta"):
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, max_position_embeddings=40960)).eval()

    assert tg.flops_per_token(model, 8192, convention="palm") == 37_578_559_488


def test_inputs_of_ones_own_are_counted_by_their_ids() -> None:
    ids = torch.zeros(4, TOKENS, dtype=torch.int64)

    assert tg.flops_per_token(llama(), TOKENS, inputs=ids) == tg.flops_per_token(llama(), TOKENS)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mode": "predict"}, "mode is one of inference, train"),
        ({"convention": "kaplan"}, "convention is one of exact, palm, megatron"),
        ({"attention": "half"}, "attention is one of full, computed"),
        ({"seq": 0}, "positive number of tokens"),
    ],
)
def test_unknown_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(tg.UsageError, match=words):
        tg.flops_per_token(llama(), **{"seq": TOKENS, **settings})


def test_a_model_of_images_has_no_tokens() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())

    with pytest.raises(tg.InputError, match="token ids"):
        tg.flops_per_token(model, 16, inputs=torch.zeros(1, 3, 16, 16))


def test_a_formula_needs_sizes_that_the_model_has() -> None:
    model = nn.Sequential(nn.Embedding(100, 32), nn.Linear(32, 100))

    with pytest.raises(tg.InputError, match="convention='exact'"):
        tg.flops_per_token(model, 16, convention="palm", inputs=torch.zeros(1, 16, dtype=torch.int64))


def test_mfu_is_the_share_of_the_dense_peak_of_all_devices() -> None:
    peak = 989.4e12  # bfloat16, dense, of an H100 SXM

    assert tg.mfu(1e9, peak / 1e9, on="h100") == pytest.approx(1.0, rel=1e-3)
    assert tg.mfu(1e9, peak / 1e9, on="h100", devices=4) == pytest.approx(0.25, rel=1e-3)
    with pytest.raises(tg.UsageError, match="no peak is known for int3"):
        tg.mfu(1e9, 1.0, on="h100", dtype="int3")
    with pytest.raises(tg.UsageError, match="must be positive"):
        tg.mfu(0, 1.0, on="h100")
