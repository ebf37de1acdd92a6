"""Files that were cut, flipped or made to mislead: one clear error, or an index whose every place is in the file."""

from __future__ import annotations

import io
import os
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from torch import nn

from tests.checkpoint.malicious import torch_archive
from torchgauge.checkpoint import describe_unknown, open_checkpoint, sniff
from torchgauge.errors import FormatError


def model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2))


def torch_file(legacy: bool = False) -> bytes:
    buffer = io.BytesIO()
    state = {"model": model().state_dict(), "optimizer": {"state": {0: {"exp_avg": torch.ones(3)}}}, "epoch": 3}
    torch.save(state, buffer, _use_new_zipfile_serialization=not legacy)
    return buffer.getvalue()


def whole_module() -> bytes:
    buffer = io.BytesIO()
    torch.save(model(), buffer)
    return buffer.getvalue()


def script_file() -> bytes:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(model()), buffer)
    return buffer.getvalue()


def exported_file() -> bytes:
    buffer = io.BytesIO()
    torch.export.save(torch.export.export(nn.Linear(3, 2), (torch.ones(1, 3),)), buffer)
    return buffer.getvalue()


MAKERS: dict[str, Callable[[], bytes]] = {
    "torch": torch_file,
    "legacy": lambda: torch_file(legacy=True),
    "module": whole_module,
    "safetensors": lambda: save(model().state_dict()),
    "torchscript": script_file,
    "exported": exported_file,
}


@pytest.fixture(scope="module")
def originals() -> dict[str, bytes]:
    return {name: make() for name, make in MAKERS.items()}


def open_whatever(path: Path) -> bool:
    """True if it could be opened; then every tensor lies in the file."""
    size = os.path.getsize(path)
    sniff(path)
    describe_unknown(path)
    try:
        index = open_checkpoint(path)
    except FormatError:
        return False
    if any("is the download complete" in warning for warning in index.warnings):
        return False
    for entry in index.entries:
        assert entry.nbytes >= 0
        assert entry.offset is None or 0 <= entry.offset <= entry.offset + entry.nbytes <= size or entry.nbytes == 0
        entry.name.encode("utf-8")
    return True


@pytest.mark.parametrize("name", MAKERS)
def test_a_file_cut_at_any_percent_is_an_error_or_says_what_is_missing(
    tmp_path: Path, originals: dict[str, bytes], name: str
) -> None:
    content = originals[name]
    for percent in range(100):
        (tmp_path / "cut").write_bytes(content[: len(content) * percent // 100])
        assert not open_whatever(tmp_path / "cut"), percent
    (tmp_path / "cut").write_bytes(content)
    assert open_whatever(tmp_path / "cut")


def flip(content: bytes, chance: random.Random, count: int) -> bytes:
    damaged = bytearray(content)
    for _ in range(count):
        damaged[chance.randrange(len(damaged))] = chance.randrange(256)
    return bytes(damaged)


def header_of(name: str, content: bytes) -> int:
    """How much of the file is not plain tensor data: where the flips matter."""
    return 8 + struct.unpack("<Q", content[:8])[0] if name == "safetensors" else len(content)


def try_flips(folder: Path, name: str, content: bytes, rounds: int) -> None:
    chance = random.Random(name)
    size = header_of(name, content)
    for number in range(rounds):
        head = flip(content[:size], chance, 1 + number % 4)
        (folder / "flipped").write_bytes(head + content[size:])
        open_whatever(folder / "flipped")


@pytest.mark.parametrize("name", MAKERS)
def test_flipped_bytes_never_escape_as_another_error(tmp_path: Path, originals: dict[str, bytes], name: str) -> None:
    try_flips(tmp_path, name, originals[name], 100)


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
def test_thousands_of_flipped_bytes(tmp_path: Path, originals: dict[str, bytes], name: str) -> None:
    try_flips(tmp_path, name, originals[name], 5000)


def flipped_pickles(folder: Path, rounds: int) -> None:
    """The pickle alone, in an archive that is sound: every flip reaches the machine."""
    buffer = io.BytesIO(torch_file())
    with zipfile.ZipFile(buffer) as archive:
        names = [name for name in archive.namelist() if "/data/" in name]
        body = archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl")))
        records = {name.partition("/")[2].replace("/", "__"): archive.read(name) for name in names}
    chance = random.Random(1)
    for number in range(rounds):
        (folder / "m").write_bytes(torch_archive(flip(body, chance, 1 + number % 3), **records))
        open_whatever(folder / "m")


def test_flipped_pickles_are_read_or_refused(tmp_path: Path) -> None:
    flipped_pickles(tmp_path, 300)


@pytest.mark.slow
def test_thousands_of_flipped_pickles(tmp_path: Path) -> None:
    flipped_pickles(tmp_path, 10_000)


def tensor_pickle(numel: bytes, offset: bytes, shape: bytes, stride: bytes) -> bytes:
    """`{"w": tensor}` with the numbers given as opcodes."""
    storage = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu" + numel + b"tQ"
    arguments = b"(" + storage + offset + b"(" + shape + b"t(" + stride + b"t\x89ccollections\nOrderedDict\n)Rt"
    return b"\x80\x02}X\x01\x00\x00\x00wctorch._utils\n_rebuild_tensor_v2\n" + arguments + b"Rs."


def number(value: int) -> bytes:
    return b"I" + str(value).encode() + b"\n"


def archive_with(tmp_path: Path, numel: int, offset: int, shape: list[int], stride: list[int]) -> Path:
    parts = [b"".join(map(number, values)) for values in ([numel], [offset], shape, stride)]
    path = tmp_path / "m.pt"
    path.write_bytes(torch_archive(tensor_pickle(*parts), data__0=bytes(24)))
    return path


def test_a_tensor_that_fits_its_storage_is_accepted(tmp_path: Path) -> None:
    (entry,) = open_checkpoint(archive_with(tmp_path, 6, 1, [1, 5], [5, 1])).entries
    assert (entry.spec.shape, entry.nbytes) == ((1, 5), 20)


@pytest.mark.parametrize(
    ("offset", "shape", "stride"),
    [
        (0, [7], [1]),
        (1, [6], [1]),
        (0, [2, 2], [5, 2]),
        (-1, [2], [1]),
        (0, [-2], [1]),
        (0, [2], [-1]),
        (0, [2**62, 2**62], [1, 1]),
        (2**63, [1], [1]),
        (2**62, [1], [1]),
        (0, [2], [2**62]),
        (0, [2, 2], [1]),
        (0, [10**40], [1]),
        (0, [1] * 500, [1] * 500),
    ],
)
def test_a_tensor_beyond_its_storage_is_refused(
    tmp_path: Path, offset: int, shape: list[int], stride: list[int]
) -> None:
    with pytest.raises(FormatError):
        open_checkpoint(archive_with(tmp_path, 6, offset, shape, stride))


def test_a_missing_storage_is_named(tmp_path: Path) -> None:
    (tmp_path / "m.pt").write_bytes(torch_archive(tensor_pickle(number(1), number(0), number(1), number(1))))
    with pytest.raises(FormatError, match="the data of storage 0 is missing"):
        open_checkpoint(tmp_path / "m.pt")


def test_names_that_leave_the_archive_are_only_names(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "m.pt")
    with zipfile.ZipFile(tmp_path / "m.pt", "a") as archive:
        archive.writestr("../../outside", b"x")
        archive.writestr("/absolute", b"x")
    before = set(tmp_path.rglob("*"))
    index = open_checkpoint(tmp_path / "m.pt")
    assert len(index.warnings) == 1
    assert "outside of the archive's folder" in index.warnings[0]
    assert set(tmp_path.rglob("*")) == before


def edited_directory(tmp_path: Path, edit: Callable[[bytearray, int], None]) -> Path:
    """A sound archive of one tensor, with the first entry of its directory changed."""
    content = bytearray(torch_archive(tensor_pickle(number(6), number(0), number(6), number(1)), data__0=bytes(24)))
    edit(content, content.find(b"PK\x01\x02"))
    (tmp_path / "m.pt").write_bytes(content)
    return tmp_path / "m.pt"


def put(at: int, form: str, value: int) -> Callable[[bytearray, int], None]:
    def edit(content: bytearray, entry: int) -> None:
        struct.pack_into(form, content, entry + at, value)

    return edit


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(put(42, "<I", 60), id="overlaps the next record"),
        pytest.param(put(42, "<I", 2**31), id="header past the end"),
        pytest.param(put(20, "<I", 2**31), id="packed size past the end"),
        pytest.param(put(24, "<I", 2**31), id="size past the end"),
        pytest.param(put(24, "<I", 0xFFFFFFFF), id="zip64 size without the field"),
        pytest.param(put(28, "<H", 60_000), id="name past the end"),
        pytest.param(put(30, "<H", 60_000), id="extra field past the end"),
        pytest.param(put(10, "<H", 99), id="unknown compression"),
        pytest.param(put(0, "<I", 0), id="no entry"),
    ],
)
def test_a_directory_that_lies_is_refused(tmp_path: Path, edit: Callable[[bytearray, int], None]) -> None:
    with pytest.raises(FormatError):
        open_checkpoint(edited_directory(tmp_path, edit))


def test_two_records_of_one_name_are_refused(tmp_path: Path) -> None:
    content = torch_archive(b"\x80\x02}.", DATA__0=b"a", data__0=b"b")
    (tmp_path / "m.pt").write_bytes(content)
    with pytest.raises(FormatError, match="two records are named"):
        open_checkpoint(tmp_path / "m.pt")


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="could not be read: No such file"):
        open_checkpoint(tmp_path / "missing.pt")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FormatError, match="is not a regular file"):
        open_checkpoint(tmp_path / "pipe")


@pytest.mark.parametrize(
    "body", [b"N.", b"}.", b"cos\nsystem\n.", b"c__torch__\nNet\n)\x81q\x00}(X\x01\x00\x00\x00ah\x00ub."]
)
def test_a_torchscript_archive_without_a_sound_module_is_an_error_or_empty(tmp_path: Path, body: bytes) -> None:
    content = torch_archive(b"\x80\x02" + body, **{"constants.pkl": b"\x80\x02)."})
    (tmp_path / "m.pt").write_bytes(content)
    if b"Net" in body:
        assert [module.path for module in open_checkpoint(tmp_path / "m.pt").modules] == [""]
    else:
        with pytest.raises(FormatError, match="not contain a TorchScript module"):
            open_checkpoint(tmp_path / "m.pt")
