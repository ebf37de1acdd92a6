from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torchgauge.checkpoint import Index, Role, Verdict, open_checkpoint


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 3)
        self.mask: torch.Tensor
        self.register_buffer("mask", torch.ones(3))
        self.grid = torch.zeros(5)  # a plain attribute: stored, but neither parameter nor buffer


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), Head())


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 6)).sum().backward()
    optimizer.step()
    return model, optimizer


def saved(folder: Path, value: Any) -> Index:
    torch.save(value, folder / "checkpoint.pt")
    return open_checkpoint(folder / "checkpoint.pt")


def names(index: Index, role: Role) -> set[str]:
    return {entry.name for entry in index.entries if entry.role is role}


PARAMS = 6 * 5 + 5 + 5 + 5
OPTIMIZER = 2 * PARAMS + 4  # two moments for each, and a step count for each of four tensors


@pytest.mark.parametrize("key", ["model", "state_dict", "model_state_dict", "net", "module"])
def test_a_training_checkpoint_keeps_model_and_optimizer_apart(tmp_path: Path, key: str) -> None:
    model, optimizer = trained()
    index = saved(tmp_path, {"epoch": 3, "optimizer": optimizer.state_dict(), key: model.state_dict(), "loss": 0.5})
    assert index.model_prefix == f"{key}."
    assert names(index, Role.PARAMETER) == {f"{key}.{name}" for name, _ in model.named_parameters()}
    assert names(index, Role.BUFFER) == {f"{key}.{name}" for name, _ in model.named_buffers()}
    assert (index.logical_params, index.optimizer_elements) == (PARAMS, OPTIMIZER)
    assert index.stored_elements == PARAMS + OPTIMIZER + 5 + 5 + 1


def test_a_lightning_checkpoint_has_its_model_under_state_dict(tmp_path: Path) -> None:
    model, optimizer = trained()
    checkpoint = {
        "epoch": 1,
        "pytorch-lightning_version": "2.0.0",
        "state_dict": {f"model.{name}": tensor for name, tensor in model.state_dict().items()},
        "loops": {"fit_loop": {"state_dict": {}}},
        "optimizer_states": [optimizer.state_dict()],
        "lr_schedulers": [{"base_lrs": [0.1]}],
        "hyper_parameters": argparse.Namespace(lr=0.1),
    }
    index = saved(tmp_path, checkpoint)
    assert index.model_prefix == "state_dict."
    assert (index.logical_params, index.optimizer_elements) == (PARAMS, OPTIMIZER)
    assert "optimizer_states.0.state.0.exp_avg" in names(index, Role.OPTIMIZER)


def test_an_averaged_copy_is_not_the_model(tmp_path: Path) -> None:
    model, _ = trained()
    copy = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    index = saved(tmp_path, {"model": model.state_dict(), "ema": copy})
    assert index.logical_params == PARAMS
    assert names(index, Role.OTHER) == {f"ema.{name}" for name in copy}
    assert saved(tmp_path, {"ema": copy, "updates": 7}).logical_params == PARAMS


def test_an_optimizer_file_holds_no_parameters(tmp_path: Path) -> None:
    _, optimizer = trained()
    index = saved(tmp_path, optimizer.state_dict())
    assert (index.logical_params, index.optimizer_elements) == (0, OPTIMIZER)


def test_several_models_side_by_side_are_all_the_model(tmp_path: Path) -> None:
    state = {"encoder": {"w": torch.ones(3)}, "decoder": {"w": torch.ones(4)}, "optimizer": {"m": torch.ones(5)}}
    index = saved(tmp_path, state)
    assert (index.model_prefix, index.logical_params, index.optimizer_elements) == ("", 7, 5)


def test_a_pickled_module_is_described_but_not_built(tmp_path: Path) -> None:
    model = Detector()
    index = saved(tmp_path, {"epoch": -1, "model": model, "ema": None, "train_args": {"imgsz": 640}})
    expected = {f"model.{name}" for name, _ in model.named_parameters()}
    assert names(index, Role.PARAMETER) == expected
    assert names(index, Role.BUFFER) == {f"model.{name}" for name, _ in model.named_buffers()}
    assert names(index, Role.OTHER) == {"model.model.2.grid"}
    assert index.model_prefix == "model."
    paths = [f"model.{name}".rstrip(".") for name, _ in model.named_modules()]
    assert [module.path for module in index.modules] == paths
    types = {module.path: module.type for module in index.modules}
    assert types["model"] == f"{__name__}.Detector"
    assert types["model.model.0"] == "torch.nn.modules.conv.Conv2d"
    verdicts = {found.name: found.verdict for found in index.imports}
    assert verdicts[f"{__name__}.Detector"] is Verdict.UNKNOWN
    assert verdicts["torch.nn.modules.conv.Conv2d"] is Verdict.EXPECTED
    assert Verdict.DANGEROUS not in {found.verdict for found in index.imports}


def test_a_whole_module_alone_has_no_prefix(tmp_path: Path) -> None:
    model = Detector()
    index = saved(tmp_path, model)
    assert names(index, Role.PARAMETER) == {name for name, _ in model.named_parameters()}
    assert (index.modules[0].path, index.model_prefix) == ("", "")


def test_modules_that_share_a_tensor_are_counted_once(tmp_path: Path) -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(10, 4), "head": nn.Linear(4, 10, bias=False)})
    model["head"].weight = model["embed"].weight
    index = saved(tmp_path, model)
    assert [entry.shared_with for entry in index.entries] == [None, "embed.weight"]
    assert index.logical_params == 40


def test_masks_and_positions_are_buffers(tmp_path: Path) -> None:
    state = {
        "h.0.attn.bias": torch.ones(1, 1, 8, 8),
        "h.0.attn.masked_bias": torch.tensor(-1e4),
        "h.0.attn.c_attn.bias": torch.ones(24),
        "embeddings.position_ids": torch.arange(8)[None],
        "rotary_emb.inv_freq": torch.ones(4),
        "layers.0.relative_position_index": torch.zeros(4, 4, dtype=torch.int64),
    }
    assert names(saved(tmp_path, state), Role.PARAMETER) == {"h.0.attn.c_attn.bias"}
