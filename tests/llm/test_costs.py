"""Costs of prefill and decode in closed form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import torchgauge as tg
from tests.llm.zoo import MODELS
from torchgauge.predict.language import extended


def attention(config: Any, length: int, window: int | None = None) -> int:
    """Scores and values of one token over `length` tokens, its own included."""
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    seen = length if window is None else min(length, window)
    return 2 * config.num_attention_heads * head * seen


def projections(config: Any) -> int:
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return 2 * config.hidden_size * head * (config.num_attention_heads + kv_heads)


def gated(config: Any, inner: int | None = None) -> int:
    return 3 * config.hidden_size * (inner or config.intermediate_size)


def plain(config: Any) -> int:
    return 2 * config.hidden_size * config.intermediate_size


def dense(config: Any, length: int) -> int:
    return config.num_hidden_layers * (projections(config) + gated(config) + attention(config, length))


def windowed(config: Any, length: int) -> int:
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    return sum(
        projections(config)
        + gated(config)
        + attention(config, length, config.sliding_window if kind == "sliding_attention" else None)
        for kind in kinds
    )


def ungated(config: Any, length: int) -> int:
    return config.num_hidden_layers * (projections(config) + plain(config) + attention(config, length))


def falcon(config: Any, length: int) -> int:
    width, head = config.hidden_size, config.hidden_size // config.num_attention_heads
    layer = width * (width + 2 * head) + width * width + 8 * width * width + attention(config, length)
    return config.num_hidden_layers * layer


def mixtral(config: Any, length: int) -> int:
    experts = config.num_experts_per_tok * gated(config) + config.hidden_size * config.num_local_experts
    return config.num_hidden_layers * (projections(config) + experts + attention(config, length))


def deepseek(config: Any, length: int) -> int:
    """The latent of every token is expanded to keys and values at every step."""
    width, heads = config.hidden_size, config.num_attention_heads
    key, value = config.qk_nope_head_dim + config.qk_rope_head_dim, config.v_head_dim
    own = width * config.q_lora_rank + config.q_lora_rank * heads * key
    own += width * (config.kv_lora_rank + config.qk_rope_head_dim) + heads * value * width
    own += length * config.kv_lora_rank * heads * (config.qk_nope_head_dim + value) + heads * length * (key + value)
    routed = width * config.n_routed_experts + gated(config, config.moe_intermediate_size) * (
        config.num_experts_per_tok + config.n_shared_experts
    )
    sparse = config.num_hidden_layers - config.first_k_dense_replace
    return config.num_hidden_layers * own + config.first_k_dense_replace * gated(config) + sparse * routed


FORMS: dict[str, Callable[[Any, int], int]] = {
    "llama": dense, "qwen2": dense, "qwen3": dense, "mistral": windowed, "gemma2": windowed, "gemma3": windowed,
    "cohere2": windowed, "phi": ungated, "gpt_neox": ungated, "falcon": falcon, "mixtral": mixtral,
    "deepseek_v3": deepseek,
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_macs_of_a_token_are_the_closed_form(name: str) -> None:
    model = MODELS[name]()
    config: Any = model.config
    found = tg.llm(model)
    head = config.hidden_size * config.vocab_size
    for context in (4, 17, 60):
        step = found.decode(context, batch=2)
        assert step.macs == 2 * (FORMS[name](config, context + 1) + head), context
        # Beyond products there are norms, rotations, activations and softmax: a few operations per element.
        assert 2 * step.macs < step.flops < 3.5 * step.macs


def test_macs_of_a_prompt_are_the_closed_form() -> None:
    """Every token of a prompt attends to all of them: causal attention is counted in full."""
    model = MODELS["llama"]()
    config: Any = model.config
    for tokens in (8, 33):
        layers = config.num_hidden_layers * tokens * (projections(config) + gated(config) + attention(config, tokens))
        head = config.hidden_size * config.vocab_size
        found = tg.llm(model)
        assert found.prefill(tokens).macs == layers + tokens * head
        assert found.prefill(tokens, last_logits=True).macs == layers + head
        assert found.prefill(tokens, batch=3).macs == 3 * (layers + tokens * head)


def test_a_step_reads_the_weights_once_and_the_cache_of_every_sequence() -> None:
    found = tg.llm(MODELS["llama"]())
    one, many = found.decode(200), found.decode(200, batch=16)
    assert many.weight_bytes - one.weight_bytes == 15 * 32 * 2  # rows of the embedding
    assert many.cache_bytes == 16 * one.cache_bytes == 16 * found.cache_bytes(201)
    assert many.arithmetic_intensity > one.arithmetic_intensity


@pytest.mark.parametrize(
    ("name", "kind"),
    [("llama", "grouped-query"), ("qwen2", "grouped-query"), ("phi", "full"), ("falcon", "multi-query"),
     ("deepseek_v3", "latent"), ("mistral", "sliding-window"), ("mamba2", "state-space")],
)  # fmt: skip
def test_layers_are_of_the_kind_that_they_are(name: str, kind: str) -> None:
    assert {row["kind"] for row in tg.llm(MODELS[name]()).layers} == {kind}


def test_a_step_gives_the_old_cache_back_layer_by_layer() -> None:
    """The cache grows by a copy: at the peak the old and the new part of one layer of four are there."""
    step = tg.llm(MODELS["llama"]()).decode(200, batch=16)
    assert step.cache_bytes < step.peak_bytes < 1.6 * step.cache_bytes


def test_experts_that_no_token_reaches_are_not_read() -> None:
    found = tg.llm(MODELS["mixtral"]())
    one, many = found.decode(8), found.decode(8, batch=2)
    expert = 3 * 32 * 48 * 4 * 4  # three matrices, float32, four layers
    assert many.weight_bytes - one.weight_bytes == 2 * expert + 32 * 4  # and a row of the embedding


def test_lower_weights_read_fewer_bytes() -> None:
    model = MODELS["llama"]()
    plain_, low = tg.llm(model).decode(16), tg.llm(model, weights_dtype="fp8").decode(16)
    assert low.macs == plain_.macs
    assert low.bytes_read < plain_.bytes_read
    assert tg.llm(model, weights_dtype="fp8").weights_bytes < tg.llm(model).weights_bytes


def test_adapters_add_their_products() -> None:
    model = MODELS["llama"]()
    bare, adapted = tg.llm(model).decode(16), tg.llm(model, adapter="lora:2:*q_proj.weight").decode(16)
    assert adapted.macs - bare.macs == 4 * 2 * (32 + 32)


def test_a_model_that_goes_over_its_tokens_one_by_one_is_extended_from_shorter_prompts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = MODELS["mamba"]()
    exact = tg.llm(model)
    wanted = exact.prefill(94), exact.decode(94), exact.cache_bytes(94)
    monkeypatch.setattr("torchgauge.predict.language.answers.MAX_OPS", 200)
    monkeypatch.setattr("torchgauge.predict.language.answers.STEPS", {8: (1, 2, 3, 4, 5)})
    found = tg.llm(model)
    point = found._point(94, 1, 0)
    assert point["extended_from"] == [14, 22, 30, 38, 46]
    short = found.prefill(94), found.decode(94), found.cache_bytes(94)
    assert (short[0].macs, short[0].flops, short[0].bytes_read) == (
        wanted[0].macs, wanted[0].flops, wanted[0].bytes_read,
    )  # fmt: skip
    assert (short[1].macs, short[2]) == (wanted[1].macs, wanted[2])


def test_a_loop_over_chunks_is_extended_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Qwen3-Next goes over chunks of 64 tokens: lengths with the same remainder have a polynomial."""
    model = MODELS["qwen3_next"]()
    model.config.max_position_embeddings = 4096  # type: ignore[union-attr]
    exact = tg.llm(model).prefill(509)
    monkeypatch.setattr("torchgauge.predict.language.answers.MAX_OPS", 300)
    monkeypatch.setattr("torchgauge.predict.language.answers.STEPS", {64: (1, 2, 3, 4, 5)})
    found = tg.llm(model)
    point = found._point(509, 1, 0)
    assert point["extended_from"] == [125, 189, 253, 317, 381]
    short = found.prefill(509)
    assert (short.macs, short.flops, short.bytes_read, short.bytes_written) == (
        exact.macs, exact.flops, exact.bytes_read, exact.bytes_written,
    )  # fmt: skip
    assert short.peak_bytes == pytest.approx(exact.peak_bytes, rel=0.01)
    assert found._point(300, 1, 0)["extended_from"] is None  # shorter than what it would be extended from


def test_only_polynomial_figures_are_extrapolated() -> None:
    lengths = [10, 20, 30, 40, 50]
    assert extended(lengths, [n * n + 3 for n in lengths], 1000) == 1_000_003
    assert extended(lengths, [{"a": [n]} for n in lengths], 1000) == {"a": [1000]}
    assert extended(lengths, [min(n, 25) for n in lengths], 1000) is None


def test_a_step_of_decoding_waits_for_cudnns_plan_in_eager_mode_alone() -> None:
    """On a device whose torch prefers cuDNN's attention; measured on an H200."""
    model = MODELS["llama"]()
    eager, graph = (tg.llm(model, execution=execution).decode(60, on="h200") for execution in ("eager", "graph"))
    older = tg.llm(model).decode(60, on="a100")
    assert eager.time_s
    assert graph.time_s
    assert older.time_s
    assert eager.time_s > 0.039 > older.time_s > graph.time_s
    assert eager.bound == "host"
