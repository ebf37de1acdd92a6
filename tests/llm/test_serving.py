"""Options of servers: speculative tokens, a shared prefix, where decode turns compute-bound."""

from __future__ import annotations

from typing import Any

import pytest

import torchgauge as tg
from tests.llm.test_costs import attention, gated, projections
from tests.llm.zoo import MODELS, on_meta, real_cache_bytes


def test_a_speculative_step_runs_all_drafts_and_one_token_more() -> None:
    model = MODELS["llama"]()
    config: Any = model.config
    step = tg.llm(model, speculative="4:0.5").decode(40, batch=3)
    token = config.num_hidden_layers * (projections(config) + gated(config) + attention(config, 45))
    assert step.macs == 3 * 5 * (token + config.hidden_size * config.vocab_size)
    assert step.cache_bytes == tg.llm(model).cache_bytes(45, 3)
    # 1 + 1/2 + 1/4 + 1/8 + 1/16 tokens of each sequence.
    assert step.new_tokens == pytest.approx(3 * 1.9375)


def test_all_drafts_are_accepted_at_a_rate_of_one_and_the_default_is_named() -> None:
    model = MODELS["llama"]()
    assert tg.llm(model, speculative="3:1").decode(8).new_tokens == 4
    found = tg.llm(model, speculative=2, context=8).to_dict()["speculative"]
    assert found == {"drafts": 2, "acceptance": 0.7, "tokens_per_step": pytest.approx(2.19)}


def test_drafts_cost_less_than_separate_steps_on_a_memory_bound_device() -> None:
    model = on_meta("Llama", num_hidden_layers=2, dtype="bfloat16")
    plain, drafted = (
        tg.llm(model, execution="graph", speculative=drafts).decode(1024, on="h200") for drafts in (None, "4:0.8")
    )
    assert plain.time_s
    assert drafted.time_s
    assert plain.time_s < drafted.time_s < 2 * plain.time_s
    assert drafted.tokens_per_s > 1.5 * plain.tokens_per_s  # type: ignore[operator]
    assert drafted.bytes_read < 1.5 * plain.bytes_read


def test_a_step_builds_a_plan_of_cudnn_only_while_the_cache_grows() -> None:
    # 36 ms of the host and more; the ops of two layers take one or two.
    model = on_meta("Mistral", num_hidden_layers=2, dtype="bfloat16", sliding_window=64)
    growing, full = (tg.llm(model).decode(context, on="h200") for context in (32, 256))
    assert growing.time_s
    assert full.time_s
    assert growing.time_s > 0.02
    assert full.time_s < 0.01


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3", "deepseek_v3", "falcon"])
def test_a_shared_prefix_is_held_once(name: str) -> None:
    """With windows, only what the window still holds of the prefix is shared."""
    model = MODELS[name]()
    found = tg.llm(model, prefix=12)
    whole, alone = real_cache_bytes(model, 30, sequences=4), real_cache_bytes(model, 12)
    shared = found.prefill(30).shared_bytes
    assert found.cache_bytes(30, sequences=4) == whole - 3 * shared
    windows = [row.get("window") for row in found.layers]
    if not any(windows):
        assert shared == alone
    elif all(windows):
        assert shared == 0  # the window of 10 has left it behind
    else:
        assert shared == sum(row["cache_bytes_per_token"] * 12 for row in found.layers if not row.get("window"))


def test_a_prompt_after_a_prefix_costs_its_own_tokens() -> None:
    model = MODELS["llama"]()
    config: Any = model.config
    after = tg.llm(model, prefix=24).prefill(64)
    token = config.num_hidden_layers * (projections(config) + gated(config) + attention(config, 64))
    assert after.macs == 40 * (token + config.hidden_size * config.vocab_size)
    assert after.new_tokens == 40
    assert after.cache_bytes == tg.llm(model).cache_bytes(64)


def test_a_prefix_is_shared_whole_at_the_context_limit() -> None:
    """The last step that has room ends at the limit, so the cache holds no more than that."""
    model = MODELS["gpt2"]()
    step = tg.llm(model, prefix=12, speculative=4).decode(64, batch=3)
    assert step.shared_bytes == real_cache_bytes(model, 12)
    assert step.cache_bytes == real_cache_bytes(model, 64, sequences=3) - 2 * step.shared_bytes


def test_only_whole_pages_of_a_prefix_are_shared() -> None:
    model = MODELS["llama"]()
    found, plain = tg.llm(model, prefix=20, page_size=16), tg.llm(model, page_size=16)
    assert found.paged_cache_bytes(32, sequences=3) == plain.cache_bytes(16) + 3 * plain.cache_bytes(16)


def test_a_prefix_as_long_as_the_prompt_is_refused() -> None:
    with pytest.raises(tg.UsageError, match="shorter than the context"):
        tg.llm(MODELS["llama"](), prefix=64, context=64)


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("Llama", {"num_hidden_layers": 2, "hidden_size": 4096, "intermediate_size": 14336, "num_key_value_heads": 8}),
        ("Mixtral", {"num_hidden_layers": 2, "num_local_experts": 64}),
    ],
)
def test_decode_turns_at_the_first_batch_that_reaches_the_ridge(family: str, settings: dict[str, Any]) -> None:
    found = tg.llm(on_meta(family, dtype="bfloat16", **settings))
    turn = found.crossover("a100", 4)
    assert turn.batch is not None
    assert found.decode(4, turn.batch - 1).arithmetic_intensity < turn.ridge
    assert found.decode(4, turn.batch).arithmetic_intensity == pytest.approx(turn.arithmetic_intensity)
    assert turn.arithmetic_intensity >= turn.ridge


def test_decode_never_turns_where_every_sequence_reads_much_cache() -> None:
    found = tg.llm(on_meta("Llama", num_hidden_layers=2, dtype="bfloat16"))
    turn = found.crossover("h200", 2048)
    assert turn.batch is None
    assert found.decode(2048, 4096).arithmetic_intensity < turn.arithmetic_intensity < turn.ridge
    last = found.to_dict()["devices"][0]["compute_bound_context"]
    assert last is not None
    assert last < 2048


def test_adapters_are_parameters_and_work_that_reports_name() -> None:
    model = MODELS["llama"]()
    plain, adapted = tg.llm(model, context=64), tg.llm(model, context=64, adapter="lora:4:*q_proj.weight")
    added = 4 * 4 * (32 + 32)  # rank 4 in four layers, 32 in and 32 out
    assert adapted.params - plain.params == added
    assert adapted.decode(64).macs - plain.decode(64).macs == added
    assert adapted.weights_bytes - plain.weights_bytes == 2 * added
    assert adapted.to_dict()["adapter"] == {"kind": "lora", "rank": 4, "pattern": "*q_proj.weight"}
    assert "LoRA, rank 4" in str(adapted)
