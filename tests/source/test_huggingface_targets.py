from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from torchgauge.errors import InputError, TargetError
from torchgauge.source import MAKERS, Defaults, ModelConfig, resolve

pytestmark = pytest.mark.usefixtures("random_state_is_left_alone")

GPT2 = {"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 11, "n_positions": 16}


def write_config(folder: Path, **settings: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(settings))
    return path


@pytest.mark.parametrize("form", ["hf:{folder}", "hf:{folder}/config.json", "{folder}", "{folder}/config.json"])
def test_a_folder_gives_its_first_architecture_on_meta(tmp_path: Path, form: str) -> None:
    path = write_config(tmp_path, **GPT2, architectures=["GPT2LMHeadModel"])
    source = resolve(form.format(folder=tmp_path))
    assert type(source.runnable).__name__ == "GPT2LMHeadModel"
    assert {parameter.device.type for parameter in source.runnable.parameters()} == {"meta"}
    assert not source.runnable.training
    assert (source.record.kind, source.record.format) == ("folder", "transformers")
    assert source.record.files == (str(path),)


def test_a_config_without_architectures_gives_the_base_model(tmp_path: Path) -> None:
    write_config(tmp_path, **GPT2)
    assert type(resolve(f"hf:{tmp_path}").runnable).__name__ == "GPT2Model"


def test_the_type_of_the_stored_weights_is_that_of_the_model(tmp_path: Path) -> None:
    write_config(tmp_path, **GPT2, dtype="bfloat16")
    model: Any = resolve(f"hf:{tmp_path}").runnable
    assert model.dtype is torch.bfloat16
    assert torch.get_default_dtype() is torch.float32


@pytest.mark.parametrize(
    ("name", "kind"),
    [("GPT2LMHeadModel", "GPT2LMHeadModel"), ("GPT2Config", "GPT2Model"), ("gpt2", "GPT2Model")],
)
def test_a_class_a_config_class_or_a_model_type_gives_the_default_model(name: str, kind: str) -> None:
    source = resolve(f"hf:{name}")
    assert type(source.runnable).__name__ == kind
    assert next(source.runnable.parameters()).is_meta
    assert (source.record.name, source.record.kind) == (f"hf:{name}", "registry")


def test_the_hub_is_offline_while_a_model_is_built_and_no_longer(tmp_path: Path) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    before = constants.HF_HUB_OFFLINE
    backbone = {"model_type": "timm_backbone", "backbone": "resnet18", "use_pretrained_backbone": True}
    write_config(tmp_path, model_type="detr", backbone_config=backbone, encoder_layers=1, decoder_layers=1)
    model: Any = resolve(f"hf:{tmp_path}").runnable
    assert model.config.backbone_config.use_pretrained_backbone is False
    assert before == constants.HF_HUB_OFFLINE


def test_a_config_cannot_have_a_library_read_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("timm")
    monkeypatch.setattr(torch, "load", lambda *args, **kwargs: pytest.fail("a checkpoint was read"))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "evil.pth").write_bytes(b"")
    arguments = {"checkpoint_path": str(tmp_path / "elsewhere" / "evil.pth"), "pretrained": True}
    settings = {"architecture": "resnet18", "num_classes": 2, "pretrained_cfg": {"num_classes": 2, "file": "evil.pth"}}
    write_config(tmp_path, model_type="timm_wrapper", model_args=arguments, **settings)
    assert next(resolve(f"hf:{tmp_path}").runnable.parameters()).is_meta


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_a_config_cannot_have_kernels_fetched(tmp_path: Path, key: str) -> None:
    write_config(tmp_path, **GPT2, **{key: "someone/kernels"})
    model: Any = resolve(f"hf:{tmp_path}").runnable
    assert model.config._attn_implementation in ("sdpa", "eager")


@pytest.mark.parametrize("name", ["__class__", "utils", "pipelines", "logging", "models"])
def test_an_architecture_is_only_looked_up_among_what_transformers_lists(tmp_path: Path, name: str) -> None:
    write_config(tmp_path, **GPT2, architectures=[name])
    with pytest.raises(TargetError, match="names the architecture"):
        resolve(f"hf:{tmp_path}")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_type": "mine", "auto_map": {"AutoModel": "m.Net"}}, "'mine', which is not known .* custom code"),
        ({"model_type": "gtp2"}, "this transformers does not know. Did you mean 'gpt2'"),
        ({"hidden_size": 4}, "has no model_type"),
        ({**GPT2, "architectures": ["MyGPT"], "auto_map": {}}, "the architecture 'MyGPT', which is not known"),
        ({**GPT2, "n_head": 3}, "could not be built: ValueError"),
        ({**GPT2, "n_layer": "many"}, "is not a valid 'gpt2' config"),
        ({"model_type": ["gpt2"]}, "model_type is a list, not a text or null"),
        ({"model_type": 7}, "model_type is 7, not a text"),
        ({**GPT2, "architectures": {"GPT2Model": 1}}, "architectures is an object, not a list"),
        ({**GPT2, "architectures": [None]}, r"architectures\[0\] is None, not a text"),
    ],
)
def test_a_config_that_gives_no_model_is_a_target_error(tmp_path: Path, settings: Any, message: str) -> None:
    write_config(tmp_path, **settings)
    with pytest.raises(TargetError, match=message):
        resolve(f"hf:{tmp_path}")


def test_a_config_with_remote_code_for_a_known_architecture_is_built_from_the_known_one(tmp_path: Path) -> None:
    write_config(tmp_path, **GPT2, architectures=["GPT2Model"], auto_map={"AutoModel": "modeling.GPT2Model"})
    (tmp_path / "modeling.py").write_text("raise RuntimeError('remote code ran')")
    assert type(resolve(f"hf:{tmp_path}").runnable).__module__ == "transformers.models.gpt2.modeling_gpt2"


def test_a_config_may_have_infinite_and_large_numbers_that_are_not_sizes(tmp_path: Path) -> None:
    """Transformers writes an infinite number as an object; Gemma 3n clips gradients at 1e10."""
    mamba = {"model_type": "mamba2", "hidden_size": 16, "num_heads": 4, "head_dim": 8, "num_hidden_layers": 1}
    write_config(tmp_path, **mamba, time_step_limit=[0.0, {"__float__": "Infinity"}], gradient_clipping=1e10)
    model: Any = resolve(f"hf:{tmp_path}").runnable
    assert tuple(model.config.time_step_limit) == (0.0, float("inf"))


@pytest.mark.parametrize("text", ["{", "[1, 2]"])
def test_a_config_must_be_a_json_object(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(TargetError, match="config"):
        resolve(f"hf:{tmp_path}")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("GPT2LMHeadModl", "Did you mean 'GPT2LMHeadModel'"),
        ("someone/model", "Nothing is downloaded"),
        ("GPT2PreTrainedModel", "nor a model class"),
        ("AutoModel", "nor a model class"),
        ("no/such/config.json", "there is no file 'no/such/config.json'"),
        ("clip_text_model_of_none", "nor a model class"),
        ("encoder-decoder", "has no base model|could not be"),
    ],
)
def test_a_name_that_gives_no_model_is_a_target_error(name: str, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        resolve(f"hf:{name}")


@pytest.mark.parametrize("value", ["many", [3], {"a": 1}, -5, 1.5, True, 10**30])
@pytest.mark.parametrize("key", ["n_positions", "vocab_size", "eos_token_id", "text_config", "image_size"])
def test_values_of_any_type_in_a_config_give_inputs_or_a_clear_error(tmp_path: Path, key: str, value: Any) -> None:
    config = SimpleNamespace(**{"max_position_embeddings": 32, "is_encoder_decoder": True, key: value})
    looks = ModelConfig(config)
    assert 0 < looks.text_length(128) <= 128
    assert looks.ordinary_token() >= 0
    for name in ("input_ids", "pixel_values", "input_features"):
        try:
            list(MAKERS[name](looks, Defaults(torch.float32)))
        except InputError as error:
            assert "cannot be made" in str(error)  # noqa: PT017 some of these values are sizes, only too large


def test_a_folder_without_a_config_is_a_target_error(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"config\.json"):
        resolve(f"hf:{tmp_path}")
