"""Decoders from transformers configs, small, with sizes that no two parts share."""

from __future__ import annotations

from typing import Any

import transformers

from tests.models.architectures.case import Case, ids
from tests.models.closed_forms import attention, convolution, linear

BATCH, LENGTH = 2, 13
TOKENS = {"bos_token_id": 1, "eos_token_id": 2}


def gpt2_macs(config: Any, batch: int, length: int) -> int:
    tokens, width = batch * length, config.n_embd
    layer = linear(tokens, width, 4 * width) + 2 * linear(tokens, width, config.n_inner or 4 * width)
    layer += attention(batch, config.n_head, length, length, width // config.n_head)
    return config.n_layer * layer + linear(tokens, width, config.vocab_size)


def gpt2() -> Case:
    config = transformers.GPT2Config(n_embd=48, n_layer=3, n_head=4, vocab_size=101, n_positions=32, **TOKENS)
    return Case(
        lambda: transformers.GPT2LMHeadModel(config),
        {"input_ids": ids(BATCH, LENGTH)},
        gpt2_macs(config, BATCH, LENGTH),
    )


def grouped_attention(config: Any, batch: int, length: int) -> int:
    """Projections and products of a self-attention with fewer keys and values than queries."""
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = 2 * config.num_attention_heads + 2 * config.num_key_value_heads
    projections = linear(batch * length, config.hidden_size, heads * size)
    return projections + attention(batch, config.num_attention_heads, length, length, size)


def llama_macs(config: Any, batch: int, length: int) -> int:
    tokens, width = batch * length, config.hidden_size
    layer = grouped_attention(config, batch, length) + 3 * linear(tokens, width, config.intermediate_size)
    return config.num_hidden_layers * layer + linear(tokens, width, config.vocab_size)


def llama(kv_heads: int) -> Case:
    config = transformers.LlamaConfig(
        hidden_size=48, intermediate_size=88, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=kv_heads, vocab_size=101,
    )  # fmt: skip
    return Case(
        lambda: transformers.LlamaForCausalLM(config),
        {"input_ids": ids(BATCH, LENGTH)},
        llama_macs(config, BATCH, LENGTH),
    )


def mixtral_macs(config: Any, batch: int, length: int) -> int:
    """Each token is routed to the same number of experts, whichever they are."""
    tokens, width = batch * length, config.hidden_size
    layer = grouped_attention(config, batch, length) + linear(tokens, width, config.num_local_experts)
    layer += 3 * linear(tokens * config.num_experts_per_tok, width, config.intermediate_size)
    return config.num_hidden_layers * layer + linear(tokens, width, config.vocab_size)


def mixtral(experts: str | None, dtype: str) -> Case:
    """16 tokens to 2 of 8 experts: 4 for each when the routing is balanced."""
    options = {} if experts is None else {"experts_implementation": experts}
    config = transformers.MixtralConfig(
        hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
        num_local_experts=8, num_experts_per_tok=2, vocab_size=101, **options,
    )  # fmt: skip
    return Case(
        lambda: transformers.MixtralForCausalLM(config),
        {"input_ids": ids(2, 8)},
        mixtral_macs(config, 2, 8),
        dtype,
    )


def mamba_macs(config: Any, batch: int, length: int) -> int:
    tokens, inner, state = batch * length, config.intermediate_size, config.state_size
    layer = linear(tokens, config.hidden_size, 2 * inner) + linear(tokens, inner, config.hidden_size)
    layer += linear(tokens, inner, config.time_step_rank + 2 * state) + linear(tokens, config.time_step_rank, inner)
    layer += linear(tokens, inner, state)  # the scan: each state times C
    layer += convolution(batch * (length + config.conv_kernel - 1), inner, inner, [config.conv_kernel], inner)
    return config.num_hidden_layers * layer + linear(tokens, config.hidden_size, config.vocab_size)


def mamba() -> Case:
    config = transformers.MambaConfig(hidden_size=48, state_size=6, num_hidden_layers=2, vocab_size=101)
    return Case(
        lambda: transformers.MambaForCausalLM(config),
        {"input_ids": ids(BATCH, LENGTH)},
        mamba_macs(config, BATCH, LENGTH),
    )


DECODERS = {
    "gpt2": gpt2(),
    "llama": llama(6),
    "llama-grouped": llama(2),
    "llama-one-key": llama(1),
    "mixtral-bf16": mixtral(None, "bfloat16"),
    "mixtral-bf16-eager": mixtral("eager", "bfloat16"),
    "mixtral-f32": mixtral(None, "float32"),
    "mamba": mamba(),
}
