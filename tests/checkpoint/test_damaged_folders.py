"""Folders with a file that was cut or flipped, and the formats that only old versions wrote."""

from __future__ import annotations

import json
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

from tests.checkpoint.test_damaged_files import MAKERS, flip, open_whatever
from tests.checkpoint.test_torch_files import write_tar
from tests.checkpoint.test_trainer_folders import write_deepspeed
from torchgauge.checkpoint import open_checkpoint, sniff
from torchgauge.errors import FormatError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def write_sharded(folder: Path) -> None:
    save_file({"a.weight": torch.ones(4, 3), "a.bias": torch.ones(4)}, folder / "one.safetensors")
    torch.save({"b.weight": torch.ones(2, 4)}, folder / "two.bin")
    places = {"a.weight": "one.safetensors", "a.bias": "one.safetensors", "b.weight": "two.bin"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def write_distributed(folder: Path) -> None:
    save_distributed({"model": {"w": torch.ones(6, 4), "b": torch.ones(4)}, "epoch": 3}, checkpoint_id=folder)


FOLDERS: dict[str, Callable[[Path], object]] = {
    "sharded": write_sharded,
    "distributed": write_distributed,
    "ranked": write_deepspeed,
}
# What an index or a pointer loses when it is cut is no longer known to have been there.
UNGUARDED = ("latest", "zero_to_fp32.py")


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {name: tmp_path_factory.mktemp(name) for name in FOLDERS}
    for name, folder in folders.items():
        FOLDERS[name](folder)
        assert sniff(folder) == name
    return folders


def members(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in UNGUARDED)


def open_folder(folder: Path) -> bool:
    """True if it could be opened; then every tensor lies in its file."""
    sniff(folder)
    try:
        index = open_checkpoint(folder)
    except FormatError:
        return False
    if any("is the download complete" in warning for warning in index.warnings):
        return False
    for entry in index.entries:
        for place in entry.chunks or (entry,):
            end = 0 if place.offset is None else place.offset + place.nbytes
            assert not place.nbytes or end <= Path(place.file).stat().st_size
    return True


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_with_a_cut_file_is_an_error_or_says_what_is_missing(
    tmp_path: Path, originals: dict[str, Path], name: str
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(originals[name], folder)
    for path in members(folder):
        content = path.read_bytes()
        for percent in range(100):
            path.write_bytes(content[: len(content) * percent // 100])
            assert not open_folder(folder), (path.name, percent)
        path.write_bytes(content)
    assert open_folder(folder)


def try_flips(folder: Path, name: str, rounds: int) -> None:
    chance = random.Random(name)
    for path in members(folder):
        content = path.read_bytes()
        for number in range(rounds):
            path.write_bytes(flip(content, chance, 1 + number % 4))
            open_folder(folder)
        path.write_bytes(content)


@pytest.mark.parametrize("name", FOLDERS)
def test_flipped_bytes_in_a_folder_never_escape(tmp_path: Path, originals: dict[str, Path], name: str) -> None:
    shutil.copytree(originals[name], tmp_path / "copy")
    try_flips(tmp_path / "copy", name, 40)


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS)
def test_thousands_of_flipped_bytes_in_a_folder(tmp_path: Path, originals: dict[str, Path], name: str) -> None:
    shutil.copytree(originals[name], tmp_path / "copy")
    try_flips(tmp_path / "copy", name, 2000)


def write_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps({"w": np.arange(12, dtype=np.float32).reshape(3, 4)}, 4))


OLD: dict[str, Callable[[Path], None]] = {"tar": write_tar, "pickle": write_pickle}


@pytest.mark.parametrize("name", OLD)
def test_an_old_file_cut_at_any_percent_is_an_error_or_whole(tmp_path: Path, name: str) -> None:
    path = tmp_path / "old"
    OLD[name](path)
    content, whole = path.read_bytes(), open_checkpoint(path).entries
    refused = 0
    for percent in range(100):
        path.write_bytes(content[: len(content) * percent // 100])
        opened = open_whatever(path)
        refused += not opened
        # A tar file ends with empty blocks: without them it is still whole.
        assert not opened or open_checkpoint(path).entries == whole
    assert refused >= 30


def flip_old(path: Path, name: str, rounds: int) -> None:
    OLD[name](path)
    content, chance = path.read_bytes(), random.Random(name)
    # The padding of a tar file takes most of it: there a flip changes nothing.
    used = len(content.rstrip(b"\0"))
    for number in range(rounds):
        path.write_bytes(flip(content[:used], chance, 1 + number % 4) + content[used:])
        open_whatever(path)


@pytest.mark.parametrize("name", OLD)
def test_flipped_bytes_in_an_old_file_never_escape(tmp_path: Path, name: str) -> None:
    flip_old(tmp_path / "old", name, 200)


@pytest.mark.slow
@pytest.mark.parametrize("name", OLD)
def test_thousands_of_flipped_bytes_in_an_old_file(tmp_path: Path, name: str) -> None:
    flip_old(tmp_path / "old", name, 5000)


@pytest.mark.parametrize("suffix", ["safetensors", "bin", "pt2", "jpg", "zip", "gguf", ""])
def test_a_file_is_opened_by_its_content_whatever_its_suffix(tmp_path: Path, suffix: str) -> None:
    formats = {}
    for name, make in MAKERS.items():
        path = tmp_path / f"{name}.{suffix}"
        path.write_bytes(make())
        formats[name] = open_checkpoint(path).format
        assert sniff(path) == formats[name]
    for name, write in OLD.items():
        write(tmp_path / f"{name}.{suffix}")
        formats[name] = open_checkpoint(tmp_path / f"{name}.{suffix}").format
    assert formats == {"torch": "torch", "legacy": "torch-legacy", "module": "torch", "safetensors": "safetensors",
                       "torchscript": "torchscript", "exported": "exported", "tar": "torch-tar",
                       "pickle": "pickle"}  # fmt: skip
