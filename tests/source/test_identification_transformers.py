"""Bare files of transformers models recognised by their names, their configs found from the shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import nn

import torchgauge as tg
from torchgauge.checkpoint import open_checkpoint
from torchgauge.source.identify import Match, identify
from torchgauge.source.identify.config_solver import sizes_of
from torchgauge.source.identify.settings import fit_tokens, numbers, with_number, with_width
from torchgauge.source.identify.spellings import modern, pattern_sum, spellings
from torchgauge.source.state_names import Shape, model_shapes

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
    "Qwen3MoeForCausalLM": GROUPED | {"head_dim": 16, "num_experts": 4, "moe_intermediate_size": 48},
    "RobertaForMaskedLM": TEXT,
    "Wav2Vec2ForCTC": SPEECH
    | {"vocab_size": 32, "feat_extract_norm": "layer", "do_stable_layer_norm": True, "conv_bias": True},
    "Wav2Vec2Model": SPEECH,
}


def build(name: str, settings: dict[str, Any]) -> Any:
    model_class = getattr(transformers, name)
    return model_class(model_class.config_class(**settings)).eval()


def stored(model: Any, folder: Path) -> dict[str, Shape]:
    """The tensors as transformers writes them."""
    model.save_pretrained(folder)
    return model_shapes(open_checkpoint(folder / "model.safetensors"))


def found(shapes: dict[str, Shape], file: str = "") -> Match:
    match = identify(shapes, file)
    assert match is not None
    return match


def check(name: str, settings: dict[str, Any], folder: Path) -> None:
    model = build(name, settings)
    match = found(stored(model, folder))
    assert f"hf:{name}" in (match.target, *match.twins)
    wanted, built = ({n: p.shape for n, p in one.named_parameters()} for one in (model, match.model))
    assert built == wanted


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_found_with_its_sizes(name: str, tmp_path: Path) -> None:
    check(name, FAMILIES[name], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE_FAMILIES)
def test_another_family_is_found_with_its_sizes(name: str, tmp_path: Path) -> None:
    check(name, MORE_FAMILIES[name], tmp_path)


def test_the_same_tensors_are_told_and_the_name_of_the_file_chooses(tmp_path: Path) -> None:
    shapes = stored(build("MistralForCausalLM", GROUPED), tmp_path)
    plain = found(shapes)
    assert plain.target == "hf:LlamaForCausalLM"
    assert "hf:MistralForCausalLM" in plain.twins
    assert "which may compute otherwise" in plain.describe()
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


def test_heads_that_shapes_leave_open_are_told(tmp_path: Path) -> None:
    match = found(stored(build("BertModel", TEXT), tmp_path))
    assert match.assumed == ("heads", "head_size")
    assert "usual value" in match.describe()


def test_old_spellings_are_read(tmp_path: Path) -> None:
    shapes = stored(build("BertForMaskedLM", TEXT), tmp_path)
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): shape
        for name, shape in shapes.items()
    }
    assert old.keys() != shapes.keys()
    assert modern(old) == shapes
    assert found(old).target == "hf:BertForMaskedLM"


def test_one_tensor_more_or_of_another_shape_is_no_match(tmp_path: Path) -> None:
    shapes = stored(build("LlamaForCausalLM", GROUPED), tmp_path)
    assert identify(shapes | {"model.layers.0.mlp.extra.weight": (3, 3)}) is None
    assert identify(shapes | {"model.norm.weight": (63,)}) is None
    assert identify(shapes | {"model.layers.1.mlp.up_proj.weight": (97, 64)}) is None
    assert identify({name: shape for name, shape in shapes.items() if name != "model.norm.weight"}) is None


def test_the_sum_of_names_is_the_same_for_any_depth_and_for_no_others() -> None:
    one, three = ([f"layers.{i}.{part}.weight" for i in range(n) for part in ("up", "down")] for n in (1, 3))
    assert pattern_sum(one) == pattern_sum(three)
    assert pattern_sum(one) != pattern_sum([*one, "norm.weight"])
    assert pattern_sum(["h.0.fc1.weight"]) != pattern_sum(["h.0.fc2.weight"])


def test_experts_have_two_spellings() -> None:
    with torch.device("meta"):
        model: nn.Module = build("MixtralForCausalLM", GROUPED | {"num_local_experts": 4})
    in_files, in_memory = spellings(model)
    assert sizes_of(in_files)["model.layers.0.block_sparse_moe.experts", -1] == 4
    assert in_memory["model.layers.0.mlp.experts.gate_up_proj"] == (4, 2 * 96, 64)


def test_numbers_of_a_config_are_found_and_changed_wherever_they_are() -> None:
    config = transformers.CLIPConfig()
    paths = dict(numbers(config))
    assert paths["vision_config", "hidden_size"] == 768
    assert not any("token" in str(path[-1]) for path in paths)
    changed = with_number({"projection_dim": 7}, config, ("vision_config", "image_size"), 32)
    built = transformers.CLIPConfig(**changed)
    assert (built.projection_dim, built.vision_config.image_size, built.vision_config.hidden_size) == (7, 32, 768)
    stages = transformers.ConvNextConfig()
    assert with_number({}, stages, ("depths", 2), 5) == {"depths": [3, 3, 5, 3]}


def test_a_width_keeps_the_size_of_its_heads() -> None:
    config = transformers.BertConfig(hidden_size=768, num_attention_heads=12)
    assert with_width({}, config, ("hidden_size",), 1024) == {"hidden_size": 1024, "num_attention_heads": 16}
    assert with_width({}, config, ("hidden_size",), 48) == {"hidden_size": 48, "num_attention_heads": 3}
    assert with_width({}, config, ("vocab_size",), 9) == {"vocab_size": 9}


def test_special_tokens_stay_in_the_vocabulary() -> None:
    config = transformers.BertConfig(vocab_size=10, pad_token_id=11, bos_token_id=3)
    fit_tokens(config)
    assert (config.pad_token_id, config.bos_token_id) == (9, 3)
