"""Tensors that are more than a strided piece of a storage, in files that this torch wrote itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.checkpoint.reading import raw_items, torch_bytes
from torchgauge.checkpoint import Entry, Index, Role, Verdict, open_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")


class Packed(torch.Tensor):
    """As quantization libraries do it: a tensor of the logical shape and type, which holds others."""

    @staticmethod
    def __new__(cls, codes: torch.Tensor, scale: torch.Tensor) -> Packed:
        shape = (codes.shape[0], 2 * codes.shape[1])
        made: Packed = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bfloat16)
        made.codes, made.scale = codes, scale
        return made

    codes: torch.Tensor
    scale: torch.Tensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if func is torch.ops.aten.detach.default:
            return Packed(args[0].codes, args[0].scale)
        raise NotImplementedError(func)


def saved(folder: Path, value: Any, *, legacy: bool = False) -> Index:
    torch.save({"w": value}, folder / "file.pt", _use_new_zipfile_serialization=not legacy)
    return open_checkpoint(folder / "file.pt")


def listed(index: Index) -> dict[str, Entry]:
    return {entry.name: entry for entry in index.entries}


@pytest.fixture
def mesh() -> Iterator[Any]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


@pytest.mark.parametrize("legacy", [False, True])
def test_a_distributed_tensor_is_its_local_part(tmp_path: Path, mesh: Any, legacy: bool) -> None:
    local = torch.arange(12.0).reshape(3, 4)
    index = saved(tmp_path, nn.Parameter(DTensor.from_local(local, mesh, [Shard(0)])), legacy=legacy)
    (entry,) = index.entries
    assert (entry.name, entry.spec.shape, entry.role) == ("w", (3, 4), Role.PARAMETER)
    assert raw_items(entry) == torch_bytes(local)
    assert {found.verdict for found in index.imports} == {Verdict.EXPECTED}


@pytest.mark.parametrize("legacy", [False, True])
def test_a_packed_wrapper_counts_its_logical_values(tmp_path: Path, legacy: bool) -> None:
    codes, scale = torch.arange(32, dtype=torch.uint8).reshape(4, 8), torch.ones(4)
    index = saved(tmp_path, nn.Parameter(Packed(codes, scale), requires_grad=False), legacy=legacy)
    assert [(e.name, e.spec.dtype, e.role, e.logical_elements) for e in index.entries] == [
        ("w.codes", "uint8", Role.PARAMETER, 4 * 16),
        ("w.scale", "float32", Role.OTHER, 0),
    ]
    assert (index.logical_params, index.stored_elements) == (64, 36)
    assert raw_items(index.entries[0]) == codes.numpy().tobytes()


def test_sparse_rows_are_listed_by_their_parts(tmp_path: Path) -> None:
    entries = listed(saved(tmp_path, torch.eye(4).to_sparse_csr()))
    assert {name: entry.spec.shape for name, entry in entries.items()} == {
        "w.crow_indices": (5,),
        "w.col_indices": (4,),
        "w.values": (4,),
    }
    assert raw_items(entries["w.values"]) == torch_bytes(torch.ones(4))


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_nested_tensor_is_listed_by_its_parts(tmp_path: Path, layout: torch.layout) -> None:
    rows = [torch.ones(2, 3), torch.zeros(4, 3)]
    index = saved(tmp_path, torch.nested.nested_tensor(rows, layout=layout))
    entries = listed(index)
    assert set(entries) == (
        {"w.values", "w.sizes", "w.strides", "w.offsets"} if layout is torch.strided else {"w.values", "w.offsets"}
    )
    assert raw_items(entries["w.values"]) == torch_bytes(torch.cat(rows))
    assert {found.verdict for found in index.imports} == {Verdict.EXPECTED}


def test_a_quantized_tensor_of_channels_gives_its_integers(tmp_path: Path) -> None:
    codes = torch.arange(6, dtype=torch.int8).reshape(2, 3)
    value = torch._make_per_channel_quantized_tensor(codes, torch.ones(2), torch.zeros(2, dtype=torch.int64), 0)
    (entry,) = saved(tmp_path, value).entries
    assert (entry.spec.dtype, entry.role, raw_items(entry)) == ("qint8", Role.PARAMETER, codes.numpy().tobytes())


def test_a_subclass_with_attributes_is_the_tensor_it_is(tmp_path: Path) -> None:
    class Named(torch.Tensor):
        pass

    Named.__qualname__ = "Named"
    globals()["Named"] = Named
    value = torch.arange(6.0).as_subclass(Named)
    value.note = "kept"  # type: ignore[attr-defined]
    (entry,) = saved(tmp_path, value).entries
    assert (entry.name, raw_items(entry)) == ("w", torch_bytes(torch.arange(6.0)))


@pytest.mark.parametrize(
    ("value", "dtype", "size"),
    [
        (torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2), "float4_e2m1fn_x2", 4),
        (torch.zeros(4, dtype=torch.uint8).view(torch.bits8), "bits8", 4),
        (torch.ones(2, dtype=torch.complex64).conj(), "complex64", 16),
        (np.ones((2, 3), np.float32), "float32", 24),
        (np.ones((2, 3), np.dtype(">f8")), "float64", 48),
    ],
)
def test_odd_types_keep_their_size(tmp_path: Path, value: Any, dtype: str, size: int) -> None:
    (entry,) = saved(tmp_path, value).entries
    assert (entry.spec.dtype, entry.nbytes) == (dtype, size)
    assert entry.big_endian == (size == 48)


def test_a_parameter_without_a_shape_yet_is_left_out(tmp_path: Path) -> None:
    state = {"w": nn.LazyLinear(4).weight, "b": torch.ones(4)}
    assert [entry.name for entry in saved(tmp_path, state).entries] == ["w.b"]


def test_storages_and_scalars_are_no_tensors(tmp_path: Path) -> None:
    state = {"bytes": torch.ones(4).untyped_storage(), "scale": np.float64(3.0), "seed": torch.Generator().get_state()}
    index = saved(tmp_path, state)
    assert [(entry.name, entry.role) for entry in index.entries] == [("w.seed", Role.BUFFER)]
