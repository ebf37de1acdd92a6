"""Adapters as PEFT writes them: read with their config, and as what they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import torchgauge as tg
from torchgauge.analysis import load
from torchgauge.checkpoint import open_checkpoint
from torchgauge.facts import AdapterRecord

LAYERS, WIDTH, RANK = 2, 32, 4
CONFIG = {
    "peft_type": "LORA",
    "base_model_name_or_path": "org/base",
    "r": RANK,
    "lora_alpha": 16,
    "lora_dropout": 0.05,
    "target_modules": ["v_proj", "q_proj"],
    "task_type": "CAUSAL_LM",
    "bias": "none",
    "inference_mode": True,
    "modules_to_save": None,
    "use_dora": False,
    "use_rslora": False,
}


def lora(**extra: torch.Tensor) -> dict[str, torch.Tensor]:
    tensors = {}
    for layer in range(LAYERS):
        for name, out in (("q_proj", WIDTH), ("v_proj", 2 * WIDTH)):
            lead = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{lead}.lora_A.weight"] = torch.randn(RANK, WIDTH)
            tensors[f"{lead}.lora_B.weight"] = torch.zeros(out, RANK)
    return tensors | extra


PARAMS = LAYERS * (RANK * WIDTH * 2 + RANK * WIDTH * 3)
ADAPTED = LAYERS * (WIDTH * WIDTH + 2 * WIDTH * WIDTH)


def write(
    folder: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any] | None, *, is_pickle: bool = False
) -> Path:
    folder.mkdir(exist_ok=True)
    if is_pickle:
        torch.save(tensors, folder / "adapter_model.bin")
    else:
        save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    if config is not None:
        (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def adapter_of(path: Path) -> AdapterRecord:
    found = open_checkpoint(path).adapter
    assert found is not None
    return found


@pytest.mark.parametrize("is_pickle", [False, True])
def test_a_lora_folder_is_read_with_its_config(tmp_path: Path, is_pickle: bool) -> None:
    found = adapter_of(write(tmp_path, lora(), CONFIG, is_pickle=is_pickle))
    assert (found.method, found.base_model, found.rank, found.alpha) == ("LoRA", "org/base", RANK, 16)
    assert (found.targets, found.modules) == (("q_proj", "v_proj"), 2 * LAYERS)
    assert (found.trainable_params, found.adapted_params) == (PARAMS, ADAPTED)
    assert found.share_of_adapted == PARAMS / ADAPTED
    assert (found.base_params, found.trainable_share) == (None, None)
    assert found.settings == {"lora_dropout": 0.05, "task_type": "CAUSAL_LM", "bias": "none"}


def test_the_file_alone_is_an_adapter_too(tmp_path: Path) -> None:
    folder = write(tmp_path / "with", lora(), CONFIG)
    assert adapter_of(folder / "adapter_model.safetensors").base_model == "org/base"
    bare = write(tmp_path / "without", lora(), None)
    found = adapter_of(bare / "adapter_model.safetensors")
    assert (found.method, found.rank, found.base_model, found.adapted_params) == ("LoRA", RANK, None, ADAPTED)


def test_an_adapter_is_no_mlp_and_is_not_identified_as_one(tmp_path: Path) -> None:
    a = tg.analyze(write(tmp_path, lora(), CONFIG), advice=False)
    assert a.architecture.family == "LoRA adapter"
    assert a.architecture.hyperparameters == {"rank": RANK, "alpha": 16, "targets": ["q_proj", "v_proj"]}
    text = str(a)
    assert "MLP" not in text
    assert "org/base" in text
    assert a.to_dict()["adapter"]["targets"] == ["q_proj", "v_proj"]
    a.save(tmp_path / "run.json")
    assert load(tmp_path / "run.json").capture.adapter == a.capture.adapter


def test_the_share_is_of_the_base_that_lies_at_its_path(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    save_file({"layers.weight": torch.ones(100, 100)}, base / "model.safetensors")
    found = adapter_of(write(tmp_path / "lora", lora(), CONFIG | {"base_model_name_or_path": str(base)}))
    assert found.base_params == 10_000
    assert found.trainable_share == PARAMS / (10_000 + PARAMS)


def test_the_code_of_the_base_tells_the_share(tmp_path: Path) -> None:
    base = nn.Linear(WIDTH, WIDTH)
    folder = write(tmp_path, lora(), CONFIG)
    a = tg.analyze(folder, code=base, input_size=(1, WIDTH), advice=False)
    size = WIDTH * WIDTH + WIDTH
    assert (a.totals.params, a.to_dict()["adapter"]["base_params"]) == (size, size)
    assert any("without the adapter" in warning for warning in a.capture.run.warnings)


@pytest.mark.parametrize(
    ("tensors", "config", "method"),
    [
        (
            lora(**{"base_model.model.q.lora_magnitude_vector.weight": torch.ones(4)}),
            CONFIG | {"use_dora": True},
            "DoRA",
        ),
        ({"base_model.model.h.0.fc.ia3_l": torch.ones(8, 1)}, {"peft_type": "IA3"}, "IA3"),
        (
            {"prompt_embeddings": torch.ones(20, 8)},
            {"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 20},
            "prompt tuning",
        ),
        ({"prompt_embeddings": torch.ones(20, 8)}, {"peft_type": "PREFIX_TUNING"}, "prefix tuning"),
        ({"a.hada_w1_a": torch.ones(4, 4)}, {"peft_type": "LOHA"}, "LoHa"),
        ({"base_model.model.h.0.fc.ia3_l": torch.ones(8, 1)}, None, "IA3"),
    ],
)
def test_other_methods_are_named(
    tensors: dict[str, torch.Tensor], config: dict[str, Any] | None, method: str, tmp_path: Path
) -> None:
    a = tg.analyze(write(tmp_path, tensors, config), advice=False)
    assert a.capture.adapter is not None
    assert a.capture.adapter.method == method
    assert a.architecture.family == f"{method} adapter"


@pytest.mark.parametrize(
    "config",
    [
        "{",
        "[]",
        '{"peft_type": 3}',
        '{"peft_type": "LORA", "r": "x", "target_modules": {"a": [1]}, "lora_alpha": null}',
    ],
)
def test_a_strange_config_does_not_keep_the_weights_from_being_read(config: str, tmp_path: Path) -> None:
    write(tmp_path, lora(), None)
    (tmp_path / "adapter_config.json").write_text(config)
    found = adapter_of(tmp_path)
    assert (found.method, found.rank) == ("LoRA", RANK)


def test_a_model_with_a_few_such_names_is_a_model(tmp_path: Path) -> None:
    tensors = {f"layers.{n}.weight": torch.ones(4, 4) for n in range(9)} | {"layers.0.lora_A.weight": torch.ones(2, 4)}
    save_file(tensors, tmp_path / "model.safetensors")
    assert open_checkpoint(tmp_path / "model.safetensors").adapter is None


def test_names_in_a_config_are_data(tmp_path: Path) -> None:
    folder = write(
        tmp_path, lora(), CONFIG | {"base_model_name_or_path": "a\x1b[31m<b>", "target_modules": ["\x1b[0m"]}
    )
    a = tg.analyze(folder, advice=False)
    assert "\x1b" not in str(a)
    a.save(tmp_path / "r.html")
    assert "<b>" not in (tmp_path / "r.html").read_text(encoding="utf-8").partition("application/json")[2][:2000]
