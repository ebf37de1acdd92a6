"""`torchgauge FILE` on what people have: one command each, no option."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

from torchgauge.cli import main
from torchgauge.source import torchvision_importable

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")


class Detect(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cv = nn.Conv2d(8, 4, 1)
        self.anchors: torch.Tensor
        self.register_buffer("anchors", torch.ones(3, 2))


class DetectionModel(nn.Module):
    """Like a file of Ultralytics: the module itself, its weights in half precision."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), Detect())
        self.names = {0: "person"}


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5))


PARAMS = 6 * 5 + 5 + 5 + 5
DETECTOR = 3 * 8 * 9 + 8 + 8 + 8 + 8 * 4 + 4
STATISTICS = 5 + 5 + 1


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 6)).sum().backward()
    optimizer.step()
    return model, optimizer


def write_ultralytics(folder: Path) -> Path:
    state = {"epoch": -1, "best_fitness": None, "model": DetectionModel().half(), "ema": None, "updates": None,
             "optimizer": None, "train_args": {"imgsz": 640}, "date": "2024-01-01", "version": "8.3.0"}  # fmt: skip
    torch.save(state, folder / "best.pt")
    return folder / "best.pt"


def write_lightning(folder: Path) -> Path:
    model, optimizer = trained()
    state = {
        "epoch": 1,
        "global_step": 100,
        "pytorch-lightning_version": "2.4.0",
        "state_dict": {f"model.{name}": tensor for name, tensor in model.state_dict().items()},
        "loops": {"fit_loop": {"state_dict": {}}},
        "callbacks": {"ModelCheckpoint": {"best_model_score": torch.tensor(0.5)}},
        "optimizer_states": [optimizer.state_dict()],
        "lr_schedulers": [],
        "hyper_parameters": argparse.Namespace(lr=0.1),
    }
    torch.save(state, folder / "last.ckpt")
    return folder / "last.ckpt"


def write_training(folder: Path) -> Path:
    model, optimizer = trained()
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}, folder / "checkpoint.pth"
    )
    return folder / "checkpoint.pth"


def write_legacy(folder: Path) -> Path:
    torch.save(network().state_dict(), folder / "old.pth", _use_new_zipfile_serialization=False)
    return folder / "old.pth"


def write_distributed(folder: Path) -> Path:
    model, optimizer = trained()
    save_distributed({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint_id=folder / "dcp")
    return folder / "dcp"


OPTIMIZER = 2 * PARAMS + 4
CASES: dict[str, tuple[Callable[[Path], Path], str, dict[str, int]]] = {
    "ultralytics": (write_ultralytics, "torch", {"params": DETECTOR, "param_bytes": 2 * DETECTOR}),
    "lightning": (write_lightning, "torch", {"params": PARAMS, "optimizer_elements": OPTIMIZER,
                                             "stored_elements": PARAMS + STATISTICS + OPTIMIZER + 1}),
    "training": (write_training, "torch", {"params": PARAMS, "optimizer_elements": OPTIMIZER}),
    "legacy": (write_legacy, "torch-legacy", {"params": PARAMS, "stored_elements": PARAMS + STATISTICS}),
    "distributed": (write_distributed, "distributed", {"params": PARAMS, "optimizer_elements": OPTIMIZER}),
}  # fmt: skip


def analysed(argv: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main([*argv, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    document: dict[str, Any] = json.loads(out)
    return document


@pytest.mark.parametrize("command", [[], ["weights"]])
@pytest.mark.parametrize("name", CASES)
def test_one_command_shows_the_totals_of_a_checkpoint(
    name: str, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write, kind, totals = CASES[name]
    document = analysed([*command, str(write(tmp_path))], capsys)
    assert document["target"]["format"].partition(",")[0] == kind
    assert {key: document["totals"][key] for key in totals} == totals
    assert not [row for row in document["pickle"]["imports"] if row["verdict"] == "dangerous"]


def test_the_modules_of_a_pickled_model_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = analysed([str(write_ultralytics(tmp_path))], capsys)
    kinds = {row["path"]: row["type"] for row in document["modules"]}
    assert kinds[""] == "DetectionModel"
    assert kinds["model.2"] == "Detect"
    assert kinds["model.2.cv"] == "Conv2d"
    assert [row["verdict"] for row in document["pickle"]["imports"] if row["name"].endswith("DetectionModel")] == [
        "unknown"
    ]


def test_a_sharded_llama_is_run_from_its_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # transformers imports torchvision, which may not match torch.
    with torchvision_importable():
        from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, vocab_size=101, tie_word_embeddings=False)  # fmt: skip
    model = LlamaForCausalLM(config)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    capsys.readouterr()  # the bar of transformers
    document = analysed([str(tmp_path), "--seq", "8"], capsys)
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    params = sum(p.numel() for p in model.parameters())
    assert (document["totals"]["params"], document["totals"]["stored_elements"]) == (params, params)
    linear = 32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 48
    attention = 2 * 8 * 8 * 32
    assert document["totals"]["macs"] == 2 * (8 * linear + attention) + 8 * 32 * 101
    assert document["architecture"]["family"] == "decoder"


def test_a_given_input_that_does_not_fit_the_inferred_code_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with torchvision_importable():
        from torchvision.models import squeezenet1_1

        torch.save(squeezenet1_1().state_dict(), tmp_path / "weights.pt")
    assert main([str(tmp_path / "weights.pt"), "--no-weights", "--json"]) == 0
    assert main([str(tmp_path / "weights.pt"), "--no-weights", "--input", "1x4x224x224"]) == 1
    assert "given 1×4×224×224" in capsys.readouterr().err
