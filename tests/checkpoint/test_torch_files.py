from __future__ import annotations

import io
import pickle
import struct
import tarfile
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import torchgauge as tg
from tests.checkpoint.reading import assert_same, raw_items
from torchgauge.checkpoint import Index, Role, Verdict, open_checkpoint, sniff

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
EIGHTS = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64]
COMPLEX = [torch.complex64, torch.complex128, torch.complex32]


def saved(folder: Path, value: Any, *, legacy: bool = False, name: str = "file.pt") -> Index:
    torch.save(value, folder / name, _use_new_zipfile_serialization=not legacy)
    return open_checkpoint(folder / name)


def sample(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(1, 97, dtype=torch.uint8).view(dtype)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
@pytest.mark.parametrize("legacy", [False, True])
def test_every_dtype_is_found_where_it_lies(tmp_path: Path, legacy: bool) -> None:
    dtypes = [*FLOATS, *EIGHTS, *INTEGERS, *COMPLEX, torch.bool]
    state = {str(dtype): sample(dtype) for dtype in dtypes if dtype is not torch.bool}
    state["torch.bool"] = torch.tensor([True, False, True])
    index = saved(tmp_path, state, legacy=legacy)
    assert index.format == ("torch-legacy" if legacy else "torch")
    # torch writes the newest types into its old format, but fails to load them from it.
    assert_same(index, state if legacy else torch.load(tmp_path / "file.pt", weights_only=True))


def test_a_real_model_matches_the_real_loader(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 10))
    index = saved(tmp_path, model.state_dict())
    assert_same(index, torch.load(tmp_path / "file.pt", weights_only=True))
    params = {name for name, _ in model.named_parameters()}
    assert {entry.name for entry in index.entries if entry.role is Role.PARAMETER} == params
    assert index.logical_params == sum(p.numel() for p in model.parameters())
    assert index.stored_elements == sum(t.numel() for t in model.state_dict().values())
    assert index.stored_bytes == sum(t.nbytes for t in model.state_dict().values())
    assert index.optimizer_elements == 0
    assert index.model_prefix == ""
    assert all(found.verdict is Verdict.EXPECTED for found in index.imports)


@pytest.mark.parametrize("legacy", [False, True])
def test_views_keep_their_offsets_and_strides(tmp_path: Path, legacy: bool) -> None:
    base = torch.arange(60, dtype=torch.float32).reshape(6, 10)
    state = {
        "whole": base,
        "transposed": base.T,
        "column": base[:, 3],
        "corner": base[2:5, 4:9],
        "every_other": base[::2, ::3],
        "permuted": torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1),
        "scalar": torch.tensor(7.0),
        "empty": torch.empty(0, 3),
    }
    index = saved(tmp_path, state, legacy=legacy)
    assert_same(index, torch.load(tmp_path / "file.pt", weights_only=True))
    shared = {entry.name: entry.shared_with for entry in index.entries}
    assert shared["whole"] is None
    assert [shared[name] for name in ("transposed", "column", "corner", "every_other")] == ["whole"] * 4
    assert index.stored_elements == 60 + 24 + 1


def test_an_expanded_tensor_counts_its_stored_elements_once(tmp_path: Path) -> None:
    index = saved(tmp_path, {"bias": torch.ones(3, 1).expand(3, 1000)})
    (entry,) = index.entries
    assert entry.spec.shape == (3, 1000)
    assert (index.stored_elements, entry.nbytes) == (3, 12)


@pytest.mark.parametrize("kind", ["expanded", "overlapping", "tied", "packed", "training", "safetensors"])
def test_totals_of_an_analysis_are_those_of_the_index(tmp_path: Path, kind: str) -> None:
    path, weight = tmp_path / "file.pt", torch.randn(50, 8)
    layer = nn.Linear(8, 4)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(weight).sum().backward()
    optimizer.step()
    states: dict[str, dict[str, Any]] = {
        "expanded": {"weight": weight, "bias": torch.ones(3, 1).expand(3, 1000)},
        "overlapping": {"windows": torch.randn(40).unfold(0, 8, 3)},
        "tied": {"embed.weight": weight, "head.weight": weight, "part": weight[:10]},
        "packed": {
            "fc.qweight": torch.zeros(8, 16, dtype=torch.int32),
            "fc.qzeros": torch.zeros(1, 2, dtype=torch.int32),
            "fc.scales": torch.ones(1, 16, dtype=torch.float16),
        },
        "training": {"model": layer.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3},
        "safetensors": {"weight": weight, "bias": torch.ones(8)},
    }
    if kind == "safetensors":
        save_file(states[kind], path)
    else:
        torch.save(states[kind], path)
    index, totals = open_checkpoint(path), tg.scan_weights(path).totals
    keys = ("stored_elements", "logical_params", "optimizer_elements", "stored_bytes")
    assert {key: totals[key] for key in keys} == {key: getattr(index, key) for key in keys}
    assert totals.stored_elements * 2 <= totals["stored_bytes"]


def test_tied_weights_are_counted_once(tmp_path: Path) -> None:
    weight = torch.randn(50, 8)
    index = saved(tmp_path, {"embed.weight": weight, "head.weight": weight, "other": torch.ones(2)})
    assert [entry.shared_with for entry in index.entries] == [None, "embed.weight", None]
    assert index.logical_params == 50 * 8 + 2


def test_disjoint_parts_of_a_storage_are_not_tied(tmp_path: Path) -> None:
    packed = torch.randn(4, 30)
    query, key, value = packed.split(10, dim=1)
    index = saved(tmp_path, {"q": query, "k": key, "v": value})
    assert [entry.shared_with for entry in index.entries] == [None, None, None]
    assert index.logical_params == 120


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation:UserWarning")
def test_quantized_tensors_give_their_integers(tmp_path: Path) -> None:
    values = torch.arange(-6, 6).reshape(3, 4)
    ones, zeros = torch.ones(3), torch.zeros(3, dtype=torch.int64)
    # Made from integers: quantizing floats needs instructions that not every processor has.
    state = {
        "tensor": torch._make_per_tensor_quantized_tensor(values.to(torch.int8), 0.1, 0),
        "channel": torch._make_per_channel_quantized_tensor(values.to(torch.int32), ones, zeros, 0),
    }
    index = saved(tmp_path, state)
    assert [entry.spec.dtype for entry in index.entries] == ["qint8", "qint32"]
    expected = [values.to(torch.int8), values.to(torch.int32)]
    assert [raw_items(entry) for entry in index.entries] == [tensor.numpy().tobytes() for tensor in expected]
    assert [entry.role for entry in index.entries] == [Role.PARAMETER, Role.PARAMETER]


def test_sparse_tensors_are_listed_by_their_parts(tmp_path: Path) -> None:
    index = saved(tmp_path, {"adjacency": torch.eye(5).to_sparse()})
    assert [(entry.name, entry.spec.shape) for entry in index.entries] == [
        ("adjacency.indices", (2, 5)),
        ("adjacency.values", (5,)),
    ]


def test_meta_tensors_have_a_shape_and_no_bytes(tmp_path: Path) -> None:
    (entry,) = saved(tmp_path, {"w": torch.empty(3, 4, device="meta")}).entries
    assert (entry.spec.shape, entry.nbytes, entry.offset) == ((3, 4), 0, None)


def test_a_lone_tensor_has_a_name(tmp_path: Path) -> None:
    (entry,) = saved(tmp_path, torch.ones(2)).entries
    assert (entry.name, entry.spec.shape) == ("tensor", (2,))


def test_a_parameter_with_attributes_is_a_parameter(tmp_path: Path) -> None:
    parameter = nn.Parameter(torch.ones(3))
    parameter.note = "kept"  # type: ignore[attr-defined]
    (entry,) = saved(tmp_path, {"running_mean": parameter}).entries
    assert entry.role is Role.PARAMETER


def test_the_suffix_is_not_looked_at(tmp_path: Path) -> None:
    assert saved(tmp_path, {"w": torch.ones(2)}, name="photo.jpg").format == "torch"
    assert sniff(tmp_path / "photo.jpg") == "torch"


def test_a_big_endian_archive_is_marked(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "little.pt")
    with zipfile.ZipFile(tmp_path / "little.pt") as old, zipfile.ZipFile(tmp_path / "big.pt", "w") as new:
        for name in old.namelist():
            new.writestr(name, b"big" if name.endswith("byteorder") else old.read(name))
    (entry,) = open_checkpoint(tmp_path / "big.pt").entries
    assert entry.big_endian


def test_compressed_records_have_no_offset(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(100)}, tmp_path / "plain.pt")
    with zipfile.ZipFile(tmp_path / "plain.pt") as old, zipfile.ZipFile(tmp_path / "packed.pt", "w", 8) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    (entry,) = open_checkpoint(tmp_path / "packed.pt").entries
    assert (entry.offset, entry.nbytes, entry.spec.shape) == (None, 400, (100,))


def test_zip64_archives_are_read(tmp_path: Path) -> None:
    torch.save({"w": torch.arange(5.0)}, tmp_path / "plain.pt")
    with zipfile.ZipFile(tmp_path / "plain.pt") as old, zipfile.ZipFile(tmp_path / "large.pt", "w") as new:
        for name in old.namelist():
            with new.open(name, "w", force_zip64=True) as record:
                record.write(old.read(name))
    (entry,) = open_checkpoint(tmp_path / "large.pt").entries
    assert raw_items(entry) == torch.arange(5.0).numpy().tobytes()


def test_bytes_before_the_archive_are_skipped_with_a_warning(tmp_path: Path) -> None:
    torch.save({"w": torch.arange(5.0)}, tmp_path / "plain.pt")
    (tmp_path / "shifted.pt").write_bytes(b"#!/bin/sh\nexit\n" + (tmp_path / "plain.pt").read_bytes())
    index = open_checkpoint(tmp_path / "shifted.pt")
    assert raw_items(index.entries[0]) == torch.arange(5.0).numpy().tobytes()
    assert index.warnings == ("15 bytes precede the archive",)


def write_tar(path: Path) -> None:
    """As PyTorch 0.1 wrote it; today's torch can still read it, but not write it."""
    storage, tensor, view = io.BytesIO(), io.BytesIO(), (20, 10, 2, 4)
    pickle.dump(1, storage, 2)
    pickle.dump((10, "cpu", torch.FloatStorage), storage, 2)
    storage.write(struct.pack("<q", 6) + np.arange(6, dtype="<f4").tobytes())
    pickle.dump([view], storage, 2)
    pickle.dump(2, tensor, 2)
    for key, root, shape, stride, offset in ((30, 10, (2, 3), (3, 1), 0), (31, 20, (2, 2), (1, 2), 0)):
        pickle.dump((key, root, torch.FloatTensor), tensor, 2)
        numbers = (*shape, *stride, offset)
        tensor.write(struct.pack(f"<ii{len(numbers)}q", len(shape), 0, *numbers))

    class Reference:
        def __init__(self, key: int) -> None:
            self.key = key

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            return str(value.key) if isinstance(value, Reference) else None

    body = io.BytesIO()
    Pickler(body, 2).dump(OrderedDict(whole=Reference(30), part=Reference(31)))
    info = pickle.dumps({"protocol_version": 1000, "little_endian": True}, 2)
    parts = {"sys_info": io.BytesIO(info), "pickle": body, "storages": storage, "tensors": tensor}
    with tarfile.open(path, "w:", format=tarfile.PAX_FORMAT) as tar:
        for name, content in parts.items():
            member = tarfile.TarInfo(name)
            member.size = len(content.getvalue())
            content.seek(0)
            tar.addfile(member, content)


@pytest.mark.filterwarnings("ignore:.*TypedStorage is deprecated:UserWarning")
def test_the_oldest_format_is_read_like_torch_does(tmp_path: Path) -> None:
    write_tar(tmp_path / "old.pth")
    index = open_checkpoint(tmp_path / "old.pth")
    assert index.format == "torch-tar"
    assert_same(index, torch.load(tmp_path / "old.pth", weights_only=False))
    assert [entry.shared_with for entry in index.entries] == [None, "whole"]


def test_pickled_arrays_are_found_in_the_pickle_itself(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {
        "w": np.arange(12, dtype=np.float32).reshape(3, 4),
        "f": np.asfortranarray(np.ones((2, 3), np.int16)),
    }
    big = np.arange(300_000, dtype=np.float64)
    (tmp_path / "weights.pkl").write_bytes(pickle.dumps({"model": {**arrays, "big": big}}, 4))
    index = open_checkpoint(tmp_path / "weights.pkl")
    assert index.format == "pickle"
    assert [entry.name for entry in index.entries] == ["model.w", "model.f", "model.big"]
    for entry, array in zip(index.entries, [*arrays.values(), big], strict=True):
        assert raw_items(entry) == array.tobytes()
