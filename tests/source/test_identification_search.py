"""The search through the code of registries that the shipped tables do not know."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
import torchvision
import transformers
from torch import nn

from torchgauge.source import Differences, state_shapes
from torchgauge.source.identify import (
    Budget,
    Features,
    match_other_versions,
    other_classes,
    rank_vocabularies,
    score_definition,
    search_entrypoints,
    search_transformers,
    spells,
    timm_entrypoints,
    vocabulary,
)


def on_meta(build: Any, *args: Any, **kwargs: Any) -> nn.Module:
    with torch.device("meta"):
        model = build(*args, **kwargs)
    assert isinstance(model, nn.Module)
    return model


def test_a_registry_of_another_version_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = state_shapes(on_meta(timm.create_model, "test_vit", num_classes=7))
    assert match_other_versions(shapes) is None
    monkeypatch.setattr("torchgauge.source.identify.identification.is_current", lambda registry: registry != "timm")
    match = match_other_versions(shapes)
    assert match is not None
    assert match.target == "timm:test_vit"


def test_a_transformers_class_is_found_by_the_words_of_its_code() -> None:
    config = transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=321, n_positions=77)
    match = search_transformers(state_shapes(on_meta(transformers.GPT2LMHeadModel, config)))
    assert match is not None
    assert match.target == "hf:GPT2LMHeadModel"


def test_one_tensor_more_or_of_another_shape_does_not_match() -> None:
    shapes = state_shapes(on_meta(timm.create_model, "test_vit"))
    entrypoints = [entry for entry in timm_entrypoints() if entry.target == "timm:test_vit"]
    assert len(search_entrypoints(shapes, entrypoints, Budget(builds=1))) == 1
    assert search_entrypoints(shapes | {"blocks.0.extra.weight": (3, 3)}, entrypoints, Budget(builds=1)) == []
    assert search_entrypoints(shapes | {"norm.weight": (63,)}, entrypoints, Budget(builds=1)) == []


def test_a_spent_budget_ends_the_search() -> None:
    shapes = state_shapes(on_meta(timm.create_model, "test_vit"))
    assert search_entrypoints(shapes, timm_entrypoints(), Budget(builds=0)) == []


def test_the_vocabulary_of_code_has_attributes_texts_and_stems() -> None:
    names = vocabulary("self.conv1 = x\nself.add_module('downsample', y)\nself.add_module(f'layer{i}', z)\n")
    assert names == {"conv1", "add_module", "downsample", "layer#"}
    assert spells(names, "layer3")
    assert not spells(names, "conv2")


def test_of_two_full_matches_the_one_with_fewer_other_words_comes_first() -> None:
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
