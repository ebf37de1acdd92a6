from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.state_dict_saver import save

from tests.checkpoint.reading import assert_same
from torchgauge.checkpoint import Role, describe_unknown, open_checkpoint, sniff
from torchgauge.errors import FormatError

STATE = {"a.weight": torch.randn(4, 3), "a.bias": torch.randn(4), "b.weight": torch.randn(2, 4).half()}
SHARDS = {"one": ["a.weight", "a.bias"], "two": ["b.weight"]}


def write_sharded(folder: Path, suffix: str) -> dict[str, str]:
    weight_map: dict[str, str] = {}
    for shard, names in SHARDS.items():
        part = {name: STATE[name] for name in names}
        if suffix == "safetensors":
            save_file(part, folder / f"{shard}.safetensors")
        else:
            torch.save(part, folder / f"{shard}.bin")
        weight_map |= dict.fromkeys(names, f"{shard}.{suffix}")
    stem = "model.safetensors" if suffix == "safetensors" else "pytorch_model.bin"
    (folder / f"{stem}.index.json").write_text(json.dumps({"metadata": {"total_size": 80}, "weight_map": weight_map}))
    return weight_map


@pytest.mark.parametrize(("suffix", "kind"), [("safetensors", "safetensors-sharded"), ("bin", "torch-sharded")])
def test_sharded_folders_join_their_files(tmp_path: Path, suffix: str, kind: str) -> None:
    write_sharded(tmp_path, suffix)
    seen: list[tuple[int, int, str]] = []
    index = open_checkpoint(tmp_path, progress=lambda *step: seen.append(step))
    assert (index.format, sniff(tmp_path)) == (kind, "sharded")
    by_name = {entry.name: entry for entry in index.entries}
    assert set(by_name) == set(STATE)
    assert_same(index, {entry.name: STATE[entry.name] for entry in index.entries})
    assert seen == [(0, 2, f"one.{suffix}"), (1, 2, f"two.{suffix}"), (2, 2, "")]
    assert [Path(file).name for file in index.files] == [f"one.{suffix}", f"two.{suffix}"]
    assert index.warnings == ()


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_sharded(tmp_path, "safetensors")
    (tmp_path / "two.safetensors").unlink()
    with pytest.raises(FormatError, match=r"two\.safetensors"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["../secret.bin", "/etc/passwd", "sub/one.bin", "..", "", "a\\b", "a\0b"])
def test_an_index_cannot_point_out_of_its_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": name}}))
    with pytest.raises(FormatError, match="not a file name in this folder"):
        open_checkpoint(tmp_path)


def test_tensors_that_the_index_and_the_files_do_not_share_are_told(tmp_path: Path) -> None:
    weight_map = write_sharded(tmp_path, "safetensors")
    del weight_map["a.bias"]
    weight_map["c.weight"] = "two.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    warnings = open_checkpoint(tmp_path).warnings
    assert len(warnings) == 2
    assert "c.weight" in warnings[0]


def test_a_plain_folder_prefers_safetensors(tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "pytorch_model.bin")
    torch.save({"x": 1}, tmp_path / "training_args.bin")
    assert open_checkpoint(tmp_path).format == "torch"
    save_file(STATE, tmp_path / "model.safetensors")
    assert open_checkpoint(tmp_path).format == "safetensors"


def test_files_of_one_name_twice_must_be_chosen_from(tmp_path: Path) -> None:
    for name in ("x.safetensors", "y.safetensors"):
        save_file(STATE, tmp_path / name)
    with pytest.raises(FormatError, match="choose one"):
        open_checkpoint(tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "readme.md").write_text("nothing here")
    with pytest.raises(FormatError, match="without model weights"):
        open_checkpoint(tmp_path)
    assert sniff(tmp_path) is None
    assert describe_unknown(tmp_path) == "a folder without model weights"


@pytest.mark.filterwarnings("ignore")
def test_a_distributed_checkpoint_is_read_from_its_metadata(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(3, 6)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    save(state, checkpoint_id=tmp_path)
    index = open_checkpoint(tmp_path)
    assert index.format == sniff(tmp_path) == "distributed"
    assert index.model_prefix == "model."
    entries = {entry.name: entry for entry in index.entries}
    expected = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    assert set(expected) <= set(entries)
    chosen = [entries[name] for name in expected]
    assert_same(type(index)(index.path, index.format, index.files, tuple(chosen)), expected)
    assert index.logical_params == 6 * 5 + 5 + 5 + 5
    moments = 2 * index.logical_params
    assert index.optimizer_elements == moments + len(list(model.parameters()))  # and a step count for each
    assert entries["model.1.running_mean"].role is Role.BUFFER


def write_distributed(folder: Path, file: str = "part", *, length: int | None = None) -> torch.Tensor:
    """A matrix in two halves, as two processes would save it."""
    whole = torch.arange(24.0).reshape(6, 4)
    chunks: list[ChunkStorageMetadata] = []
    stored: dict[MetadataIndex, Any] = {}
    place = 0
    with open(folder / "part", "wb") as stream:
        for row in (0, 3):
            torch.save(whole[row : row + 3].clone(), stream)
            end = stream.tell()
            chunks.append(ChunkStorageMetadata(torch.Size([row, 0]), torch.Size([3, 4])))
            info = _StorageInfo(file, place, end - place if length is None else length)
            stored[MetadataIndex("w", torch.Size([row, 0]))] = info
            place = end
    size = TensorStorageMetadata(TensorProperties(torch.float32), whole.shape, chunks)
    (folder / ".metadata").write_bytes(pickle.dumps(Metadata({"w": size}, None, stored)))
    return whole


def test_a_sharded_tensor_lists_its_chunks(tmp_path: Path) -> None:
    whole = write_distributed(tmp_path)
    (entry,) = open_checkpoint(tmp_path).entries
    assert (entry.spec.shape, entry.offset, entry.nbytes) == ((6, 4), None, 96)
    assert [(chunk.corner, chunk.shape) for chunk in entry.chunks] == [((0, 0), (3, 4)), ((3, 0), (3, 4))]
    for chunk in entry.chunks:
        assert chunk.offset is not None
        content = Path(chunk.file).read_bytes()[chunk.offset : chunk.offset + chunk.nbytes]
        assert content == whole[chunk.corner[0] : chunk.corner[0] + 3].numpy().tobytes()


@pytest.mark.parametrize("length", [10**12, 5, 0])
def test_a_distributed_piece_of_the_wrong_length_is_refused(tmp_path: Path, length: int) -> None:
    write_distributed(tmp_path, length=length)
    with pytest.raises(FormatError):
        open_checkpoint(tmp_path)


def test_distributed_metadata_cannot_point_out_of_its_folder(tmp_path: Path) -> None:
    write_distributed(tmp_path, "../part")
    with pytest.raises(FormatError, match="not in the folder"):
        open_checkpoint(tmp_path)
