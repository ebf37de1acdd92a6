"""One sound file or folder of every format: what the fuzzer damages."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

from tests.checkpoint.gguf_writing import write_gguf
from tests.checkpoint.test_folders import write_distributed, write_sharded
from tests.checkpoint.test_torch_files import write_tar
from tests.checkpoint.test_trainer_folders import write_deepspeed, write_megatron
from torchgauge.source import torchvision_importable

DATA = Path(__file__).parent.parent / "data"
# A folder's files by their paths in it; a single file is a folder with one.
Files = dict[str, bytes]
Make = Callable[[Path], object]

GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 1, "n_embd": 8, "n_head": 2,
        "vocab_size": 11, "n_positions": 16, "eos_token_id": 3, "torch_dtype": "float32"}  # fmt: skip
VIT = {"model_type": "vit", "num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "image_size": [16, 16],
       "intermediate_size": 8, "patch_size": 8, "num_channels": 3}  # fmt: skip


class Net(nn.Module):
    """A branch, a loop, a buffer, an integer constant: what graphs are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2)
        self.register_buffer("steps", torch.arange(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).relu().mean((2, 3))
        for _ in range(2):
            x = x + self.steps  # type: ignore[operator]
        if x.shape[0] > 3:
            x = x * 2
        return self.head(x)


def training_state() -> dict[str, Any]:
    model = Net()
    moments = {0: {"step": 3, "exp_avg": torch.ones(4, 3, 3, 3)}}
    return {"model": model.state_dict(), "optimizer": {"state": moments}, "epoch": 3, "args": {"lr": 0.1}}


def write_exported(path: Path) -> None:
    torch.export.save(torch.export.export(Net().eval(), (torch.ones(1, 3, 8, 8),)), path)


def write_config(settings: dict[str, Any]) -> Make:
    return lambda folder: (folder / "config.json").write_text(json.dumps(settings))


def write_huggingface(folder: Path) -> None:
    """A config with the weights of its model in shards."""
    with torchvision_importable():
        from transformers import GPT2Config, GPT2LMHeadModel

    GPT2LMHeadModel(GPT2Config(**GPT2)).save_pretrained(folder, max_shard_size="2KB")


def write_fsdp(folder: Path) -> None:
    for part in ("pytorch_model_fsdp_0", "optimizer_0"):
        save_distributed({"weight": torch.ones(4, 3)}, checkpoint_id=folder / part)


def write_pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps({"layer.weight": np.ones((2, 3)), "notes": ["a", 1.5, None]}, 4))


SINGLE: dict[str, Make] = {
    "model.pt": lambda path: torch.jit.save(torch.jit.script(Net().eval()), path),
    "traced.pt": lambda path: torch.jit.save(torch.jit.trace(Net().eval(), torch.ones(1, 3, 8, 8)), path),
    "model.pt2": write_exported,
    "old.pt2": lambda path: path.write_bytes((DATA / "exported" / "torch26.pt2").read_bytes()),
    "zip.pth": lambda path: torch.save(training_state(), path),
    "module.pth": lambda path: torch.save(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), path),
    "legacy.pth": lambda path: torch.save(training_state(), path, _use_new_zipfile_serialization=False),
    "tar.pth": write_tar,
    "plain.pkl": write_pickled,
    "model.gguf": lambda path: write_gguf(path, layers=1),
    "model.safetensors": lambda path: save_file(Net().state_dict(), path),
    "cnn.json": lambda path: path.write_bytes((DATA / "runs" / "cnn.json").read_bytes()),
    "measured.json": lambda path: path.write_bytes((DATA / "runs" / "measured.json").read_bytes()),
    "weights.json": lambda path: path.write_bytes((DATA / "runs" / "weights.json").read_bytes()),
    # The journal next to it is damaged.
    "journal.safetensors": lambda path: save_file(Net().state_dict(), path),
}
FOLDERS: dict[str, Make] = {
    "config": write_config(GPT2),
    "vision config": write_config(VIT),
    "huggingface": write_huggingface,
    "sharded": lambda folder: write_sharded(folder, "safetensors"),
    "sharded torch": lambda folder: write_sharded(folder, "bin"),
    "distributed": write_distributed,
    "fsdp": write_fsdp,
    "deepspeed": write_deepspeed,
    "megatron": write_megatron,
}


def make_samples(folder: Path) -> dict[str, Files]:
    """The files of every sample by its name; the same for the same versions of torch and transformers."""
    torch.manual_seed(0)
    found: dict[str, Files] = {}
    for name, make in SINGLE.items():
        make(folder / name)
        found[name] = {name: (folder / name).read_bytes()}
    for name, make in FOLDERS.items():
        place = folder / name
        place.mkdir()
        make(place)
        found[name] = {
            str(path.relative_to(place)): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()
        }
    return found
