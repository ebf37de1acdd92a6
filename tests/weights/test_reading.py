from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from torchgauge.checkpoint import Chunk, Entry, open_checkpoint
from torchgauge.errors import FormatError
from torchgauge.facts import TensorSpec
from torchgauge.weights import (
    FileReader,
    FileRows,
    decode_rows,
    plan_checkpoint,
    plan_tensor,
    read_piece,
    stamp_files,
    zero_nonfinite,
)
from torchgauge.weights import plan as pieces
from torchgauge.weights import reader as reading
from torchgauge.weights import rows as file_rows


@pytest.fixture
def content(tmp_path: Path) -> Path:
    path = tmp_path / "data.bin"
    path.write_bytes(bytes(range(256)) * 4)
    return path


def read(files: FileReader, path: Path, offset: int, count: int) -> bytes:
    buffer = np.empty(count, dtype=np.uint8)
    files.read(str(path), offset, buffer)
    return buffer.tobytes()


def test_bytes_come_from_where_they_are(content: Path) -> None:
    with FileReader(stamp_files([str(content)])) as files:
        assert read(files, content, 250, 10) == bytes([*range(250, 256), *range(4)])
        assert read(files, content, 1020, 4) == bytes([252, 253, 254, 255])
        assert read(files, content, 0, 0) == b""


def test_bytes_beyond_the_end_are_an_error_that_says_so(content: Path) -> None:
    with (
        FileReader(stamp_files([str(content)])) as files,
        pytest.raises(FormatError, match=r"beyond the end of .* truncated"),
    ):
        read(files, content, 1020, 5)


def test_a_file_that_changed_is_not_read_as_if_it_had_not(content: Path) -> None:
    with FileReader(stamp_files([str(content)])) as files:
        read(files, content, 0, 4)
        os.utime(content, ns=(0, 0))
        with pytest.raises(FormatError, match="changed while it was read"):
            read(files, content, 0, 4)


def test_a_file_that_shrank_is_an_error(content: Path) -> None:
    with FileReader(stamp_files([str(content)])) as files:
        content.write_bytes(b"short")
        with pytest.raises(FormatError, match="bytes early"):
            read(files, content, 0, 100)


def test_a_file_that_is_gone_is_an_error_of_its_tensors(tmp_path: Path) -> None:
    missing = tmp_path / "gone.bin"
    with (
        FileReader(stamp_files([str(missing)])) as files,
        pytest.raises(FormatError, match="could not be read: No such file"),
    ):
        read(files, missing, 0, 1)


def test_a_thread_has_one_file_open_at_a_time(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.bin" for number in range(50)]
    for path in paths:
        path.write_bytes(b"1234")
    with FileReader(stamp_files(map(str, paths))) as files:
        assert {read(files, path, 0, 4) for path in paths} == {b"1234"}
        assert len(files._open_files) == 1


@pytest.fixture
def deflated(tmp_path: Path) -> Path:
    """A checkpoint that somebody has packed anew."""
    generator = torch.Generator().manual_seed(0)
    weights = {"a": torch.randn(300, 7, generator=generator).half(), "b": torch.arange(10_000)}
    weights["late"] = weights["b"][5000:]
    torch.save(weights, tmp_path / "plain.pt")
    with zipfile.ZipFile(tmp_path / "plain.pt") as old, zipfile.ZipFile(tmp_path / "packed.pt", "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name), zipfile.ZIP_DEFLATED)
    return tmp_path / "packed.pt"


@pytest.mark.parametrize("limit", [16 << 20, 4096, 64])
def test_a_compressed_record_is_unpacked_in_bounded_parts(
    deflated: Path, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "PIECE_BYTES", limit)
    monkeypatch.setattr(reading, "_INFLATE_BYTES", 1000)
    expected = torch.load(deflated)
    with FileReader(stamp_files([str(deflated)])) as files:
        for plan in plan_checkpoint(open_checkpoint(deflated)):
            parts = [part.copy() for piece in plan.pieces for part in read_piece(files, piece)]
            assert max(map(len, parts)) <= limit
            assert b"".join(part.tobytes() for part in parts) == expected[plan.name].numpy().tobytes()


def test_a_damaged_compressed_record_is_an_error(deflated: Path) -> None:
    plan = next(plan for plan in plan_checkpoint(open_checkpoint(deflated)) if plan.name == "b")
    damaged = bytearray(deflated.read_bytes())
    start = plan.pieces[0].offset
    damaged[start : start + 200] = bytes(200)
    deflated.write_bytes(bytes(damaged))
    with FileReader(stamp_files([str(deflated)])) as files, pytest.raises(FormatError, match="compressed record"):
        list(read_piece(files, plan.pieces[0]))


TYPES = [
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8", "int16", "int32",
    "int64", "bool",
]  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES)
def test_bytes_become_the_numbers_that_torch_sees(dtype: str) -> None:
    kind = getattr(torch, dtype)
    raw = torch.randint(0, 256, (4096,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    stored = (raw % 2).bool() if dtype == "bool" else raw.view(kind)
    found = decode_rows(stored.view(torch.uint8).numpy(), dtype)
    np.testing.assert_array_equal(found, stored.to(torch.float64).numpy().astype(found.dtype))


def test_big_endian_numbers_are_read_as_such() -> None:
    values = np.array([1.5, -2.25, 3e5], dtype=">f4")
    np.testing.assert_array_equal(
        decode_rows(values.view(np.uint8), "float32", big_endian=True), values.astype(np.float32)
    )


def rows_of(entry: Entry) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    with FileReader(stamp_files({entry.file, *(chunk.file for chunk in entry.chunks)})) as files:
        with FileRows(plan_tensor(entry), files) as rows:
            first, second = (np.concatenate([block.copy() for block in rows.blocks()]) for _ in range(2))
            np.testing.assert_array_equal(first, second)
            assert first.shape == rows.shape
        return first


def test_rows_are_those_of_the_tensor_whatever_its_order_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_rows, "BLOCK_VALUES", 50)
    base = torch.randn(6, 5, 4, generator=torch.Generator().manual_seed(2))
    views = {
        "plain": base.clone(),
        "vector": torch.arange(200.0),
        "scalar": torch.tensor(3.0),
        "turned": base.transpose(0, 2).clone(memory_format=torch.preserve_format),
        "gaps": base.clone()[:, 1:3, ::2],
        "expanded": torch.randn(1, 5, generator=torch.Generator().manual_seed(3)).expand(7, 5),
        "last": torch.randn(3, 8, 2, 2).to(memory_format=torch.channels_last),
    }
    torch.save(views, tmp_path / "m.pt")
    for entry in open_checkpoint(tmp_path / "m.pt").entries:
        expected = views[entry.name]
        matrix = expected.reshape(expected.shape[0], -1) if expected.dim() > 1 else expected.reshape(-1, 1)
        np.testing.assert_array_equal(rows_of(entry), matrix.numpy(), err_msg=entry.name)


def test_rows_are_put_together_from_chunks_of_any_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_rows, "BLOCK_VALUES", 24)
    whole = np.arange(8 * 6, dtype=np.float32).reshape(8, 6)
    parts = {(0, 0): whole[:3, :4], (0, 4): whole[:3, 4:], (3, 0): whole[3:, :1], (3, 1): whole[3:, 1:]}
    chunks = []
    for number, (corner, part) in enumerate(parts.items()):
        path = tmp_path / f"{number}.bin"
        path.write_bytes(b"head" + part.tobytes())
        chunks.append(Chunk(corner, part.shape, str(path), 4, part.nbytes))
    entry = Entry("w", TensorSpec((8, 6)), chunks[0].file, None, whole.nbytes, chunks=tuple(chunks))
    np.testing.assert_array_equal(rows_of(entry), whole)


def test_values_that_are_not_finite_come_as_zero(tmp_path: Path) -> None:
    values = np.array([[1.0, np.nan], [np.inf, -np.inf]], dtype=np.float32)
    (tmp_path / "w.bin").write_bytes(values.tobytes())
    found = rows_of(Entry("w", TensorSpec((2, 2)), str(tmp_path / "w.bin"), 0, 16))
    np.testing.assert_array_equal(found, [[1, 0], [0, 0]])


def test_values_beyond_the_budget_are_read_again_and_are_the_same(
    content: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_rows, "KEPT", file_rows.MemoryBudget(0))
    entry = Entry("w", TensorSpec((32, 32), "uint8"), str(content), 0, 1024)
    np.testing.assert_array_equal(rows_of(entry).reshape(-1), np.frombuffer(content.read_bytes(), np.uint8))


def test_the_budget_is_given_back(content: Path) -> None:
    budget = file_rows.MemoryBudget(100)
    assert budget.take(60)
    assert not budget.take(60)
    budget.give_back(60)
    assert budget.take(100)


def test_a_piece_knows_how_much_of_the_file_it_needs() -> None:
    gather = pieces.Gather((3, 2), (10, 1), 4)
    assert pieces.Piece("w", 0, "f", 0, 24, "float32", gather=gather).span == (2 * 10 + 1 + 1) * 4


@pytest.mark.parametrize(
    ("values", "expected"),
    [([np.inf, -np.inf, np.nan, 2.0], [0, 0, 0, 2]), ([1.7e308, 1.7e308], [1.7e308, 1.7e308])],
)
def test_infinities_are_taken_out_without_a_warning(values: list[float], expected: list[float]) -> None:
    assert zero_nonfinite(np.array(values)).tolist() == expected
