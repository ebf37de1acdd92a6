from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from torchgauge.checkpoint import Chunk, Deflated, Entry, Index, open_checkpoint
from torchgauge.facts import TensorSpec
from torchgauge.weights import (
    PIECE_BYTES,
    FileReader,
    Piece,
    make_batches,
    plan_checkpoint,
    plan_tensor,
    read_piece,
    same_views,
    stamp_files,
)

MIB = 1 << 20


def entry(shape: tuple[int, ...], dtype: str = "float32", stride: tuple[int, ...] | None = None) -> Entry:
    spec = TensorSpec(shape, dtype, stride)
    return Entry("w", spec, "model.bin", 1000, spec.distinct_bytes)


def test_a_large_tensor_is_cut_into_whole_elements_that_cover_it_once() -> None:
    pieces = plan_tensor(entry((5 * MIB,), "float64")).pieces
    assert [piece.number for piece in pieces] == list(range(len(pieces)))
    assert sum(piece.nbytes for piece in pieces) == 40 * MIB
    assert max(piece.nbytes for piece in pieces) == PIECE_BYTES
    assert all(piece.nbytes % 8 == 0 for piece in pieces)
    assert [piece.offset for piece in pieces] == [1000, 1000 + PIECE_BYTES, 1000 + 2 * PIECE_BYTES]


@pytest.mark.parametrize("stride", [(1, 100), (3, 300), None])
def test_values_side_by_side_are_read_as_one_run_in_any_order(stride: tuple[int, ...] | None) -> None:
    shape = (100, 3) if stride != (3, 300) else (100, 1)
    stride = (1, 100) if stride == (3, 300) else stride
    (piece,) = plan_tensor(entry(shape, stride=stride)).pieces
    assert (piece.offset, piece.nbytes, piece.gather) == (1000, 4 * prod(shape), None)


def test_an_expanded_dimension_is_read_once() -> None:
    (piece,) = plan_tensor(entry((64, 10), stride=(0, 1))).pieces
    assert piece.nbytes == 40
    assert piece.is_plain


def view_of(tensor: torch.Tensor, view: torch.Tensor, tmp_path: Path) -> Entry:
    """The entry of a view, with the bytes of what it views in a file."""
    file = tmp_path / "data.bin"
    file.write_bytes(tensor.numpy().tobytes())
    spec = TensorSpec(tuple(view.shape), "int32", view.stride())
    return Entry("v", spec, str(file), int(view.storage_offset()) * 4, spec.distinct_bytes)


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t[:, :7],
        lambda t: t[3:, 5::4],
        lambda t: t.t()[2:, ::3],
        lambda t: t.reshape(10, 6, 32)[:, 1:5:2, ::5],
        lambda t: t[::20, 0],
        lambda t: t[5, 3:4].expand(4, 1),
        lambda t: t.reshape(-1).as_strided((5, 4), (2, 1)),
    ],
)
@pytest.mark.parametrize("limit", [16 * MIB, 512, 64])
def test_a_view_with_gaps_gives_each_of_its_values(
    view: object, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchgauge.weights.plan.PIECE_BYTES", limit)
    tensor = torch.arange(60 * 32, dtype=torch.int32).reshape(60, 32)
    seen = view(tensor)  # type: ignore[operator]
    found = plan_tensor(view_of(tensor, seen, tmp_path))
    assert all(piece.span <= limit for piece in found.pieces)
    with FileReader(stamp_files([found.entry.file])) as files:
        values = [part.copy().view(np.int32) for piece in found.pieces for part in read_piece(files, piece)]
    distinct = seen[:1] if 0 in seen.stride() else seen
    assert sorted(np.concatenate([part.reshape(-1) for part in values])) == sorted(distinct.reshape(-1).tolist())


def test_chunks_are_read_where_they_lie() -> None:
    parts = (Chunk((0, 0), (2, 3), "a", 5, 24), Chunk((2, 0), (1, 3), "b", 7, 12))
    found = plan_tensor(Entry("w", TensorSpec((3, 3)), "a", None, 36, chunks=parts))
    assert [(p.number, p.file, p.offset, p.nbytes) for p in found.pieces] == [(0, "a", 5, 24), (1, "b", 7, 12)]
    compressed = Chunk((2, 0), (1, 3), "b", None, 12)
    assert plan_tensor(Entry("w", TensorSpec((3, 3)), "a", None, 36, chunks=(parts[0], compressed))).skipped


@pytest.mark.parametrize(
    ("unreadable", "reason"),
    [
        (Entry("w", TensorSpec((3,)), "", None, 0), "meta device"),
        (Entry("w", TensorSpec((3,)), "a.pt", None, 12), "compressed record"),
        (Entry("w", TensorSpec((4,), "float6_e2m3fn"), "a", 0, 3), "float6_e2m3fn"),
        (Entry("w", TensorSpec((9,)), "a", None, 36, deflated=Deflated(0, 2, 10**6)), "zip bomb"),
    ],
)
def test_what_has_no_readable_values_says_why(unreadable: Entry, reason: str) -> None:
    found = plan_tensor(unreadable)
    assert found.pieces == ()
    assert found.skipped is not None
    assert reason in found.skipped


def test_tensors_come_in_the_order_of_their_bytes() -> None:
    places = [("b", 900), ("a", 500), ("a", 20)]
    entries = [Entry(f"{file}{at}", TensorSpec((1,)), file, at, 4) for file, at in places]
    found = plan_checkpoint(Index("x", "safetensors", ("a", "b"), tuple(entries)))
    assert [item.name for item in found] == ["a20", "a500", "b900"]


def test_the_same_view_is_read_once_and_another_view_of_the_bytes_for_itself(tmp_path: Path) -> None:
    weight = torch.arange(12.0).reshape(3, 4)
    torch.save({"w": weight, "tied": weight, "part": weight[:2]}, tmp_path / "m.pt")
    index = open_checkpoint(tmp_path / "m.pt")
    assert same_views(index) == {"tied": "w"}
    assert [item.name for item in plan_checkpoint(index)] == ["w", "part"]


def test_small_neighbours_are_read_together_and_far_ones_are_not() -> None:
    def piece(number: int, offset: int, nbytes: int, file: str = "a") -> Piece:
        return Piece(f"t{number}", 0, file, offset, nbytes, "uint8")

    pieces = [piece(0, 0, 10), piece(1, 64, 10), piece(2, 90_000, 10), piece(3, 90_010, 3 * MIB), piece(4, 0, 1, "b")]
    assert [[p.tensor for p in unit.pieces] for unit in make_batches(pieces)] == [["t0", "t1"], ["t2"], ["t3"], ["t4"]]
    assert next(make_batches(pieces)).span == 74


def test_units_of_a_file_with_many_small_tensors_are_few(tmp_path: Path) -> None:
    save_file({f"t{number:03}": torch.ones(8) for number in range(300)}, tmp_path / "m.safetensors")
    plans = plan_checkpoint(open_checkpoint(tmp_path / "m.safetensors"))
    units = list(make_batches(piece for item in plans for piece in item.pieces))
    assert len(plans) == 300
    assert len(units) == 1
