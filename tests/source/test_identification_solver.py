"""How the config of a transformers class is found from the names and shapes of a file."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import nn

from tests.source.transformers_zoo import GROUPED, IMAGE, TEXT, build
from torchgauge.source import Shape
from torchgauge.source.identify import (
    MEMBERS,
    NAMED,
    Outline,
    Probe,
    Sketch,
    answers,
    configure,
    curved_answers,
    fit_tokens,
    is_accepted,
    layer_lists,
    numbers,
    pattern_of,
    pattern_sum,
    spacings,
    spellings,
    stage_lists,
    starting_settings,
    switches,
    unset_numbers,
    with_value,
    with_width,
    without,
)


def layers(*kinds: str) -> dict[str, Shape]:
    """A list of layers: of dense ones, and of ones with experts."""
    parts = {"d": {"up.weight": (8, 4)}, "m": {"gate.weight": (2, 4), "experts.0.w": (8, 4), "experts.1.w": (8, 4)}}
    return {f"layers.{i}.{name}": shape for i, kind in enumerate(kinds) for name, shape in parts[kind].items()}


def configured(config_class: Any, settings: dict[str, Any]) -> Any:
    config = configure(config_class, settings)
    assert config is not None
    return config


def test_the_sum_of_names_is_the_same_for_any_depth_and_for_no_others() -> None:
    one, three = ([f"layers.{i}.{part}.weight" for i in range(n) for part in ("up", "down")] for n in (1, 3))
    assert pattern_sum(one) == pattern_sum(three)
    assert pattern_sum(one) != pattern_sum([*one, "norm.weight"])
    assert pattern_sum(["h.0.fc1.weight"]) != pattern_sum(["h.0.fc2.weight"])
    assert pattern_of("0.h2.10.w.3") == "#.h2.#.w.#"


def test_a_sketch_estimates_the_overlap_of_two_sets_of_names() -> None:
    names = [f"name{i}" for i in range(10)]
    sketch = Sketch.of(names)
    assert Sketch.from_text(sketch.to_text()) == sketch
    assert sketch.likeness(Sketch.of(reversed(names))) == 1
    assert sketch.likeness(Sketch.of(names[:5])) == 0.5
    assert sketch.likeness(Sketch.of(f"other{i}" for i in range(10))) == sketch.likeness(Sketch.of(())) == 0


def test_a_sketch_of_many_names_is_near_their_likeness() -> None:
    whole, most = (Sketch.of(f"name{i}" for i in range(n)) for n in (1000, 900))
    assert 0.7 < whole.likeness(most) <= 1


def test_an_outline_counts_tensors_members_and_patterns() -> None:
    outline = Outline.of(layers("d", "m", "m") | {"norm.weight": (4,), "norm.num_batches_tracked": ()})
    assert outline.size(("layers", MEMBERS)) == 3
    assert outline.size(("layers.1.experts", MEMBERS)) == 2
    assert outline.size(("layers.#.experts.#.w", NAMED)) == 4
    assert (outline.size(("layers.0.up.weight", 1)), outline.size(("layers.0.up.weight", 2))) == (4, None)
    assert outline.wrong(outline) == {}


def test_an_outline_lists_the_differences_of_another() -> None:
    wrong = Outline.of(layers("d", "m")).wrong(Outline.of(layers("d", "d") | {"extra": (1,)}))
    assert wrong["layers.#.up.weight", NAMED] == (2, 1)
    assert wrong["layers.1.gate.weight", 0] == (None, 2)
    assert wrong["extra", NAMED] == (1, 0)
    assert ("layers", MEMBERS) not in wrong


def test_the_first_layers_are_those_that_show_each_kind() -> None:
    assert len(Outline.of(layers("d", *"m" * 20)).first_layers.shapes) == len(layers("d", "m", "m"))
    few = Outline.of(layers("d", "m"))
    assert few.first_layers is few


def test_a_later_layer_that_differs_is_seen_where_all_tensors_count() -> None:
    wanted, built = layers(*"d" * 9), layers(*"d" * 9) | {"layers.8.up.weight": (7, 4)}
    assert Outline.of(wanted).wrong(Outline.of(built)) == {}
    outline = Outline.of(wanted)
    assert Outline(outline.shapes, outline.counts, is_whole=True).wrong(Outline.of(built)) == {
        ("layers.8.up.weight", 0): (7, 8)
    }


@pytest.mark.parametrize(
    ("size", "wanted"),
    [(lambda n: n, 96), (lambda n: 3 * n + 2, 48), (lambda n: n * n + 1, 16), (lambda n: 960 // n, 12)],
    ids=["the number itself", "a multiple and something", "a square and something", "a share"],
)
def test_the_number_that_makes_a_size_right_is_found(size: Any, wanted: int) -> None:
    key = ("w", 0)
    wrong = {key: (size(8), size(wanted))}
    assert wanted in list(answers(wrong, 8, Probe(16, {key: size(16)})))


def test_a_ratio_may_be_any_fraction() -> None:
    wrong = {("w", 0): (256, 224)}
    assert next(answers(wrong, 4.0, Probe(8.0, {("w", 0): 512}))) == 3.5


def test_a_size_that_is_the_number_goes_before_products_with_it() -> None:
    wrong = {("q", 0): (2048, 64), ("k", 0): (1024, 32), ("norm", 0): (256, 16)}
    probe = Probe(512, {("q", 0): 4096, ("k", 0): 2048, ("norm", 0): 512})
    assert list(answers(wrong, 256, probe))[:2] == [16, 8]


def test_a_table_of_relative_places_is_a_curve() -> None:
    def table(window: int) -> int:
        return (2 * window - 1) ** 2

    key = ("table", 0)
    probes = (Probe(n, {key: table(n)}) for n in (14, 21))
    assert list(curved_answers({key: (table(7), table(12))}, 7, *probes)) == [12]


def test_numbers_of_a_config_are_found_and_changed_wherever_they_are() -> None:
    config = transformers.CLIPConfig()
    paths = dict(numbers(config))
    assert paths["vision_config", "hidden_size"] == 768
    assert not any("token" in str(path[-1]) for path in paths)
    changed = with_value({"projection_dim": 7}, config, ("vision_config", "image_size"), 32)
    built = transformers.CLIPConfig(**changed)
    assert (built.projection_dim, built.vision_config.image_size, built.vision_config.hidden_size) == (7, 32, 768)
    assert without(changed, ("vision_config", "image_size"))["vision_config"].keys() == {"model_type"}
    stages = transformers.ConvNextConfig()
    assert with_value({}, stages, ("depths", 2), 5) == {"depths": [3, 3, 5, 3]}


def test_flags_and_what_may_be_left_out_are_switches() -> None:
    found = dict(switches(transformers.DeepseekV3Config()))
    assert (found["attention_bias",], found["q_lora_rank",]) == (True, None)
    assert ("use_cache",) not in found
    assert ("num_key_value_heads",) in list(unset_numbers(transformers.NemotronConfig()))


def test_a_width_keeps_the_size_of_its_heads() -> None:
    config = transformers.BertConfig(hidden_size=768, num_attention_heads=12)
    assert with_width({}, config, ("hidden_size",), 1024) == {"hidden_size": 1024, "num_attention_heads": 16}
    assert with_width({}, config, ("hidden_size",), 48) == {"hidden_size": 48, "num_attention_heads": 3}
    assert with_width({}, config, ("vocab_size",), 9) == {"vocab_size": 9}
    stages = transformers.SegformerConfig()
    changed = with_width({}, stages, ("hidden_sizes", 1), 128)
    assert changed == {"hidden_sizes": [32, 128, 160, 256], "num_attention_heads": [1, 4, 5, 8]}


def test_special_tokens_stay_in_the_vocabulary() -> None:
    config = transformers.BertConfig(vocab_size=10, pad_token_id=11, bos_token_id=3)
    fit_tokens(config)
    assert (config.pad_token_id, config.bos_token_id) == (9, 3)


def test_lists_by_layer_follow_a_depth_that_the_config_refuses() -> None:
    config = transformers.GPTNeoConfig()
    config.num_layers = 5
    assert not is_accepted(config)
    config = configured(transformers.GPTNeoConfig, {"num_layers": 5, "hidden_size": 32, "vocab_size": 9})
    assert config.attention_layers == ["global", "local", "global", "local", "global"]
    assert is_accepted(config)
    assert len(transformers.GPTNeoModel(config).h) == 5


def test_settings_that_a_config_refuses_are_skipped() -> None:
    config = configured(transformers.Mamba2Config, {"hidden_size": 64})
    assert config.hidden_size == 64
    assert not is_accepted(config)


def test_sizes_that_would_take_forever_make_no_config() -> None:
    assert configure(transformers.BertConfig, {"max_position_embeddings": 10**9}) is None
    assert configure(transformers.BertConfig, {"num_labels": 10**6}) is None
    assert configure(transformers.CLIPConfig, {"vision_config": {"image_size": 10**9}}) is None


def test_the_places_and_kinds_of_layers_are_taken_from_the_file() -> None:
    config = transformers.BambaConfig(num_hidden_layers=3, attn_layer_indices=[0])
    places = dict(layer_lists(config, layers("m", "d", "d"), layers("d", "m", "d")))
    assert places == {("attn_layer_indices",): [1]}
    by_kind = transformers.Qwen3NextConfig(num_hidden_layers=3, layer_types=["linear_attention", "full_attention"] * 1
                                           + ["linear_attention"])  # fmt: skip
    kinds = dict(layer_lists(by_kind, layers("d", "m", "d"), layers("m", "d", "m")))
    assert kinds["layer_types",] == ["full_attention", "linear_attention", "full_attention"]


def test_spacings_are_tried_where_layers_have_other_names() -> None:
    config = transformers.Llama4TextConfig()
    found = [
        value
        for path, value in spacings(config, layers("m", "m"), layers("d", "m"))
        if path[-1] == "interleave_moe_layer_step"
    ]
    assert 2 in found
    assert list(spacings(config, layers("d", "m"), layers("d", "m"))) == []


def test_lists_of_stages_are_cut_and_drawn_out_together() -> None:
    config = transformers.ConvNextConfig(depths=[1, 2, 3, 4], hidden_sizes=[8, 16, 24, 32])
    cut = next(iter(stage_lists(config, {4: 2})))
    assert (cut["depths",], cut["hidden_sizes",]) == ([1, 2], [8, 16])
    assert next(iter(stage_lists(config, {4: 5})))["depths",] == [1, 2, 3, 4, 4]


def test_each_part_of_a_model_has_its_own_guess() -> None:
    parts = {
        "text_config": GROUPED | {"model_type": "llama"},
        "vision_config": IMAGE | {"model_type": "clip_vision_model"},
    }
    with torch.device("meta"):
        shapes = spellings(build("LlavaForConditionalGeneration", parts))[0].shapes
    settings = starting_settings(transformers.LlavaConfig, shapes, {})
    assert settings["text_config"]["hidden_size"] == 64
    assert (settings["vision_config"]["patch_size"], settings["vision_config"]["num_hidden_layers"]) == (8, 2)


def test_experts_have_two_spellings() -> None:
    with torch.device("meta"):
        model: nn.Module = build("MixtralForCausalLM", GROUPED | {"num_local_experts": 4})
    in_files, in_memory = (spelling.shapes for spelling in spellings(model))
    assert Outline.of(in_files).size(("model.layers.0.block_sparse_moe.experts", MEMBERS)) == 4
    assert in_memory["model.layers.0.mlp.experts.gate_up_proj"] == (4, 2 * 96, 64)


def test_tied_tensors_are_twins_in_every_spelling() -> None:
    with torch.device("meta"):
        model: nn.Module = build("BertForMaskedLM", TEXT)
    head, words = "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"
    assert spellings(model)[0].twins[head] == {words}
