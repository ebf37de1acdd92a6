"""Bare state dicts recognised as models of the installed registries."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
import torchvision
import transformers
from torch import nn

from torchgauge.source.identify import identify
from torchgauge.source.identify.entrypoints import timm_entrypoints
from torchgauge.source.identify.features import Features, rank_vocabularies, score_definition, spells, vocabulary
from torchgauge.source.identify.search import Budget, other_classes, search
from torchgauge.source.matching import Differences, state_shapes


def targets(model: nn.Module) -> list[str]:
    return [match.target for match in identify(state_shapes(model))]


def on_meta(build: Any, *args: Any, **kwargs: Any) -> nn.Module:
    with torch.device("meta"):
        model = build(*args, **kwargs)
    assert isinstance(model, nn.Module)
    return model


def test_all_registries_that_hold_the_model_are_named() -> None:
    found = targets(on_meta(torchvision.models.resnet18))
    assert found[0] == "torchvision:resnet18"
    assert "timm:resnet18" in found


@pytest.mark.parametrize("name", ["test_vit", "vit_tiny_patch16_224", "mixer_s32_224"])
def test_a_timm_model_is_found_by_its_name(name: str) -> None:
    assert f"timm:{name}" in targets(on_meta(timm.create_model, name))


def test_another_number_of_classes_is_no_other_model() -> None:
    matches = identify(state_shapes(on_meta(timm.create_model, "test_vit", num_classes=7)))
    assert matches[0].target == "timm:test_vit"
    assert state_shapes(matches[0].recipe.build())["head.weight"][0] == 7


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("BertModel", {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}),
        ("GPT2LMHeadModel", {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 321, "n_positions": 77}),
        (
            "LlamaForCausalLM",
            {
                "hidden_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "intermediate_size": 96,
                "vocab_size": 333,
            },
        ),
        ("T5ForConditionalGeneration", {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4}),
    ],
)
def test_a_transformers_model_is_found_with_its_sizes(name: str, settings: dict[str, Any]) -> None:
    model_class = getattr(transformers, name)
    model = on_meta(model_class, model_class.config_class(**settings))
    matches = identify(state_shapes(model))
    assert f"hf:{name}" in [match.target for match in matches]
    assert state_shapes(matches[0].model).keys() == state_shapes(model).keys()


def test_heads_that_shapes_leave_open_are_told() -> None:
    config = transformers.BertConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4)
    (match, *_) = identify(state_shapes(on_meta(transformers.BertModel, config)))
    assert match.assumed == ("heads", "head_size")


def test_one_tensor_more_or_of_another_shape_is_no_match() -> None:
    shapes = state_shapes(on_meta(timm.create_model, "test_vit"))
    entrypoints = [entry for entry in timm_entrypoints() if entry.target == "timm:test_vit"]
    assert len(search(shapes, entrypoints, Budget(builds=1))) == 1
    assert search(shapes | {"blocks.0.extra.weight": (3, 3)}, entrypoints, Budget(builds=1)) == []
    assert search(shapes | {"norm.weight": (63,)}, entrypoints, Budget(builds=1)) == []


def test_layers_of_a_users_own_match_nothing() -> None:
    assert identify(state_shapes(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)))) == []
    assert identify({}) == []


def test_a_spent_budget_ends_the_search() -> None:
    shapes = state_shapes(on_meta(timm.create_model, "test_vit"))
    assert search(shapes, timm_entrypoints(), Budget(builds=0)) == []


def test_the_vocabulary_of_code_has_attributes_texts_and_stems() -> None:
    names = vocabulary("self.conv1 = x\nself.add_module('downsample', y)\nself.add_module(f'layer{i}', z)\n")
    assert names == {"conv1", "add_module", "downsample", "layer#"}
    assert spells(names, "layer3")
    assert not spells(names, "conv2")


def test_of_two_that_spell_all_words_the_one_with_less_besides_comes_first() -> None:
    words = frozenset({"conv", "fc"})
    vocabularies = {
        "large": frozenset({"conv", "fc", "a", "b", "c"}),
        "exact": frozenset({"conv", "fc"}),
        "half": frozenset({"fc"}),
    }
    assert [name for _, name in rank_vocabularies(words, vocabularies)] == ["exact", "large", "half"]


def test_a_definition_that_lists_the_stages_scores_best() -> None:
    features = Features(state_shapes(on_meta(torchvision.models.resnet34)))
    right = score_definition(features, "resnet34", "return _resnet(BasicBlock, [3, 4, 6, 3])")
    wrong = score_definition(features, "resnet18", "return _resnet(BasicBlock, [2, 2, 2, 2])")
    assert right > wrong + 3


@pytest.mark.parametrize(
    ("differences", "classes"),
    [
        (Differences(mismatched=(("fc.weight", (1000, 64), (7, 64)), ("fc.bias", (1000,), (7,)))), 7),
        (Differences(mismatched=(("fc.weight", (1000, 64), (7, 32)),)), None),
        (Differences(mismatched=(("a.weight", (10, 4), (7, 4)), ("b.weight", (20, 4), (8, 4)))), None),
        (Differences(missing=("x",), mismatched=(("fc.weight", (1000, 64), (7, 64)),)), None),
        (Differences(), None),
    ],
)
def test_only_a_wider_or_narrower_head_means_other_classes(differences: Differences, classes: int | None) -> None:
    assert other_classes(differences) == classes
