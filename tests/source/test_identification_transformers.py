"""Bare files of transformers models recognised by their names, their configs found from the shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import torchgauge as tg
from tests.source.transformers_zoo import FAMILIES, GROUPED, HARD_FAMILIES, LATENT, MORE_FAMILIES, TEXT, build, stored
from torchgauge.source import Shape
from torchgauge.source.identify import Match, identify, modern


def found(shapes: dict[str, Shape], file: str = "") -> Match:
    match = identify(shapes, file)
    assert match is not None
    return match


def config_of(match: Match) -> Any:
    return match.model.config


def check(name: str, settings: dict[str, Any], folder: Path) -> None:
    model = build(name, settings)
    match = found(stored(model, folder))
    assert f"hf:{name}" in (match.target, *match.twins)
    wanted, built = ({n: p.shape for n, p in one.named_parameters()} for one in (model, match.model))
    assert built == wanted


@pytest.mark.parametrize("name", [*FAMILIES, *HARD_FAMILIES])
def test_a_family_is_found_with_its_sizes(name: str, tmp_path: Path) -> None:
    check(name, (FAMILIES | HARD_FAMILIES)[name], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE_FAMILIES)
def test_another_family_is_found_with_its_sizes(name: str, tmp_path: Path) -> None:
    check(name, MORE_FAMILIES[name], tmp_path)


def test_models_with_the_same_tensors_are_listed_and_the_file_name_decides(tmp_path: Path) -> None:
    shapes = stored(build("MistralForCausalLM", GROUPED), tmp_path)
    plain = found(shapes)
    assert plain.target == "hf:LlamaForCausalLM"
    assert "hf:MistralForCausalLM" in plain.twins
    assert "may compute something else" in plain.describe()
    assert found(shapes, "Mistral-7B-v0.1.safetensors").target == "hf:MistralForCausalLM"


def test_a_bare_mixture_of_experts_costs_what_the_model_does(tmp_path: Path) -> None:
    settings = GROUPED | {"num_local_experts": 4, "num_attention_heads": 2, "num_key_value_heads": 1}
    model = build("MixtralForCausalLM", settings)
    model.save_pretrained(tmp_path)
    (tmp_path / "config.json").unlink()
    bare, live = tg.analyze(str(tmp_path / "model.safetensors"), seq=8), tg.analyze(model, seq=8)
    assert bare.capture.target.format == "safetensors, inferred: hf:MixtralForCausalLM"
    assert (bare.totals.macs, bare.totals.params) == (live.totals.macs, live.totals.params)
    assert bare.totals.logical_params == live.totals.params


def test_tied_words_count_once_however_they_are_stored(tmp_path: Path) -> None:
    model = build("LlamaForCausalLM", GROUPED | {"tie_word_embeddings": True})
    params = sum(p.numel() for p in model.parameters())
    torch.save(model.state_dict(), tmp_path / "tied.pt")
    save_file({k: v.clone() for k, v in model.state_dict().items()}, tmp_path / "apart.safetensors")
    assert tg.analyze(str(tmp_path / "tied.pt"), seq=8).totals.params == params
    assert tg.analyze(str(tmp_path / "apart.safetensors"), seq=8).totals.params == params + 333 * 64


def test_heads_not_determined_by_shapes_are_reported(tmp_path: Path) -> None:
    match = found(stored(build("BertModel", TEXT), tmp_path))
    assert match.assumed == {"heads": 2, "head_size": 32}
    assert "heads 2, head_size 32" in match.describe()


def test_heads_determined_by_shapes_are_not_assumed(tmp_path: Path) -> None:
    match = found(stored(build("DeepseekV3ForCausalLM", HARD_FAMILIES["DeepseekV3ForCausalLM"]), tmp_path))
    assert match.assumed == {"experts_per_token": 8}
    assert config_of(match).num_attention_heads == LATENT["num_attention_heads"]


def test_one_norm_over_all_heads_says_nothing_about_them(tmp_path: Path) -> None:
    match = found(stored(build("Olmo2ForCausalLM", GROUPED), tmp_path))
    assert list(match.assumed) == ["heads", "head_size", "kv_heads"]


def test_settings_that_no_tensor_determines_are_reported_as_defaults(tmp_path: Path) -> None:
    described = found(stored(build("LlamaForCausalLM", GROUPED), tmp_path)).describe()
    config, names = found(stored(build("LlamaForCausalLM", GROUPED), tmp_path)).defaults
    assert (config, set(names)) == (
        "LlamaConfig", {"max_position_embeddings", "hidden_act", "rms_norm_eps", "rope_parameters"},
    )  # fmt: skip
    assert "not determined by any tensor" in described
    assert "max_position_embeddings" in described


def test_layers_that_share_their_tensors_are_as_many_as_by_default(tmp_path: Path) -> None:
    match = found(stored(build("AlbertModel", FAMILIES["AlbertModel"]), tmp_path))
    assert match.assumed["depth"] == config_of(match).num_hidden_layers == 12


def test_state_groups_not_determined_by_shapes_are_reported(tmp_path: Path) -> None:
    match = found(stored(build("Mamba2ForCausalLM", HARD_FAMILIES["Mamba2ForCausalLM"]), tmp_path))
    assert match.assumed == {"state_size": 48, "state_groups": 1}


@pytest.mark.parametrize("name", ["GPTNeoForCausalLM", "Mamba2ForCausalLM", "DeepseekV2ForCausalLM"])
def test_bare_weights_of_a_hard_family_cost_what_the_model_does(name: str, tmp_path: Path) -> None:
    chosen = {"num_experts_per_tok": 6, "n_groups": 1}
    settings = HARD_FAMILIES[name]
    model = build(name, settings | {key: value for key, value in chosen.items() if key in settings})
    stored(model, tmp_path)
    bare, live = tg.analyze(str(tmp_path / "model.safetensors"), seq=8, weights=False), tg.analyze(model, seq=8)
    assert bare.capture.target.format == f"safetensors, inferred: hf:{name}"
    assert (bare.totals.macs, bare.totals.active_params) == (live.totals.macs, live.totals.active_params)


def test_tensors_that_a_class_leaves_unused_are_reported(tmp_path: Path) -> None:
    shapes = stored(build("DeepseekV3ForCausalLM", HARD_FAMILIES["DeepseekV3ForCausalLM"]), tmp_path)
    more = {"model.layers.61.eh_proj.weight": (64, 128), "model.layers.61.enorm.weight": (64,)}
    match = found(shapes | more)
    assert (match.target, match.unused) == ("hf:DeepseekV3ForCausalLM", tuple(more))
    assert "all tensors except 2 that it does not use (such as 'model.layers.61.eh_proj.weight')" in match.describe()


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("MixtralForCausalLM", "gate.weight"),
        pytest.param("MixtralForCausalLM", "w1.weight", marks=pytest.mark.slow),
        pytest.param("BertForMaskedLM", "position_embeddings.weight", marks=pytest.mark.slow),
    ],
)
def test_sizes_without_measure_are_not_built(name: str, ending: str, tmp_path: Path) -> None:
    shapes = stored(build(name, FAMILIES[name]), tmp_path)
    assert any(key.endswith(ending) for key in shapes)
    claimed = {key: (10**12, *shape[1:]) if key.endswith(ending) else shape for key, shape in shapes.items()}
    assert identify(claimed) is None


def test_as_many_experts_as_a_fused_tensor_claims_are_not_taken_apart() -> None:
    with torch.device("meta"):
        shapes = {key: tuple(value.shape) for key, value in build("MixtralForCausalLM", GROUPED).state_dict().items()}
    claimed = {key: (10**9, *x[1:]) if "experts" in key or "gate" in key else x for key, x in shapes.items()}
    assert identify(claimed) is None


def test_old_spellings_are_read(tmp_path: Path) -> None:
    shapes = stored(build("BertForMaskedLM", TEXT), tmp_path)
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): shape
        for name, shape in shapes.items()
    }
    assert old.keys() != shapes.keys()
    assert modern(old) == shapes
    assert found(old).target == "hf:BertForMaskedLM"


CHANGES: dict[str, Any] = {
    "one more": lambda shapes: shapes | {"model.layers.0.mlp.extra.weight": (3, 3)},
    "another shape": lambda shapes: shapes | {"model.layers.1.mlp.up_proj.weight": (97, 64)},
    "one less": lambda shapes: {name: shape for name, shape in shapes.items() if name != "model.norm.weight"},
    "another width": lambda shapes: shapes | {"model.norm.weight": (63,)},
}


@pytest.mark.parametrize(
    "change", ["one more", *(pytest.param(name, marks=pytest.mark.slow) for name in list(CHANGES)[1:])]
)
def test_one_tensor_more_or_less_or_of_another_shape_does_not_match(change: str, tmp_path: Path) -> None:
    shapes = stored(build("LlamaForCausalLM", GROUPED), tmp_path)
    assert identify(shapes) is not None
    assert identify(CHANGES[change](shapes)) is None
