"""The cache of each architecture, against the model's own after a real run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import transformers as hf

import torchgauge as tg
from tests.llm.zoo import MODELS, real_cache_bytes
from torchgauge.predict import Library, find_device
from torchgauge.predict.language import Observed, Pass, Point, cost_of, observe

LIBRARY = Library(find_device("h200").chip)
# Of the decoders with an encoder that takes text.
ENCODER_TOKENS = {"t5": 9, "mbart": 9, "pegasus": 9, "led": 9, "prophetnet": 9}


# Of each kind of cache: all positions, a window, chunks, latents, states, states beside positions, an encoder's beside
# the decoder's, compressed positions. `make test-all` has the other architectures.
KINDS = ("llama", "gpt2", "mpt", "gemma2", "llama4", "deepseek_v3", "mamba", "rwkv", "jamba", "qwen3_next", "t5",
         "whisper", "deepseek_v4")  # fmt: skip
ARCHITECTURES = [pytest.param(name, marks=() if name in KINDS else pytest.mark.slow) for name in MODELS]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Reference code says that it is slower than kernels that are not installed."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    yield
    logging.set_verbosity(before)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_cache_bytes_are_those_of_the_models_own_cache(name: str) -> None:
    model, encoder = MODELS[name](), ENCODER_TOKENS.get(name, 0)
    found = tg.llm(model)
    for tokens, sequences, steps in ((5, 1, 0), (25, 1, 0), (25, 1, 3), (14, 3, 1)):
        real = real_cache_bytes(model, tokens, sequences=sequences, encoder_tokens=encoder, steps=steps)
        assert found.cache_bytes(tokens, sequences, encoder) == real, (tokens, sequences, steps)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_folded_layers_cost_what_a_full_trace_costs(name: str) -> None:
    model, points = (
        MODELS[name](),
        [Point(25, 1, ENCODER_TOKENS.get(name, 0)), Point(7, 2, ENCODER_TOKENS.get(name, 0))],
    )

    def passes(fold: bool) -> list[tuple[object, ...]]:
        seen, found = observe(model, points, LIBRARY, fold=fold)
        assert all(isinstance(one, Observed) for one in found.values())

        def costs(run: Pass) -> tuple[object, ...]:
            cost = cost_of(run, seen.params)
            return (cost.macs, cost.flops, cost.bytes_read, cost.bytes_written, cost.ops, run.peak_bytes, cost.modules)

        return [(*costs(one.prefill), *costs(one.decode), [held.nbytes for held in one.cache_after])
                for one in found.values()]  # fmt: skip

    assert passes(fold=True) == passes(fold=False)


def test_equal_layers_are_traced_twice_and_the_others_folded() -> None:
    """The last one is compared with the first the first time that a length is run, not for further sequences."""
    _, found = observe(MODELS["llama"](), [Point(8), Point(8, 2), Point(9)], LIBRARY)
    folded = [[len(part.paths) for part in one.prefill.segments if part.paths] for one in found.values()]
    assert folded == [[3, 1], [4], [3, 1]]


def test_the_model_is_left_unchanged() -> None:
    model = MODELS["llama"]()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    tg.llm(model).decode(16)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert "_compiled_call_impl" not in vars(model.get_submodule("model.layers.0"))


def test_a_cache_in_another_type_takes_its_share() -> None:
    model = MODELS["llama"]()
    assert 2 * tg.llm(model, cache_dtype="fp8").cache_bytes(64) == tg.llm(model).cache_bytes(64)


def test_pages_are_allocated_whole() -> None:
    found = tg.llm(MODELS["llama"](), page_size=16)
    assert found.paged_cache_bytes(17) == found.cache_bytes(32)
    assert found.paged_cache_bytes(32, sequences=3) == 3 * found.cache_bytes(32)


@pytest.mark.parametrize("name", ["gpt2", "gptj", "opt", "mpt", "mbart"])
def test_a_cache_may_be_full_to_the_last_position(name: str) -> None:
    """Positions come from a table of 64: the step after 64 tokens is the last one that has room."""
    model, encoder = MODELS[name](), ENCODER_TOKENS.get(name, 0)
    found = tg.llm(model)
    assert found.context_limit == 64
    assert found.cache_bytes(64, encoder_tokens=encoder) == real_cache_bytes(model, 64, encoder_tokens=encoder)
    assert found.decode(64, encoder_tokens=encoder).macs == found.decode(63, encoder_tokens=encoder).macs
    with pytest.raises(tg.InputError, match="context limit of 64"):
        found.cache_bytes(65, encoder_tokens=encoder)


@pytest.mark.parametrize(("name", "positions", "usable"), [("roberta", 66, 64), ("prophetnet", 64, 62)])
def test_a_table_of_positions_that_is_shorter_than_the_config_says_is_the_limit(
    name: str, positions: int, usable: int
) -> None:
    model, encoder = MODELS[name](), ENCODER_TOKENS.get(name, 0)
    found = tg.llm(model)
    assert (model.config.max_position_embeddings, found.context_limit) == (positions, usable)  # type: ignore[union-attr]
    assert any(f"the config gives {positions} positions" in warning for warning in found.warnings)
    assert found.cache_bytes(usable, encoder_tokens=encoder) == real_cache_bytes(model, usable, encoder_tokens=encoder)
    with pytest.raises((IndexError, RuntimeError)):
        real_cache_bytes(model, usable + 1, encoder_tokens=encoder)


def test_a_model_that_takes_no_cache_has_that_of_the_language_model_inside_it() -> None:
    tower = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = {"model_type": "opt", "vocab_size": 96, "hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 3,
            "num_attention_heads": 4, "max_position_embeddings": 64, "word_embed_proj_dim": 32}  # fmt: skip
    config = hf.Blip2Config(
        vision_config=tower | {"image_size": 28, "patch_size": 14},
        qformer_config=tower | {"encoder_hidden_size": 32, "vocab_size": 96},
        text_config=text,
        num_query_tokens=4,
    )
    model = hf.Blip2ForConditionalGeneration(config).eval()
    found = tg.llm(model)
    assert found.cache_bytes(14, 3) == real_cache_bytes(model.language_model, 14, sequences=3)
    assert found.params == sum(param.numel() for param in model.parameters())
    assert found.layers[0]["path"] == "language_model.model.decoder.layers.0"
    assert {row["path"] for row in found.facts["not_run"]} >= {"vision_model", "qformer"}
    assert any("its language model, 'language_model'" in warning for warning in found.warnings)
