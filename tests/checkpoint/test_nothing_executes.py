from __future__ import annotations

import io
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.checkpoint.malicious import CORPUS, call, legacy_file, shell, text, torch_archive
from torchgauge.checkpoint import Import, Verdict, open_checkpoint
from torchgauge.errors import FormatError

SYSTEM = ("os.system", "posix.system")


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[str]:
    """A file that must not exist after the test, whatever was opened in it."""
    path = tmp_path / "canary"
    yield str(path)
    assert not path.exists(), "something in the file was executed"


def imports_of(path: Path) -> tuple[Import, ...]:
    """What is reported, whether or not the file could be read to its end."""
    try:
        return open_checkpoint(path).imports
    except FormatError as error:
        return error.imports


def dangerous(path: Path) -> list[str]:
    return [found.name for found in imports_of(path) if found.verdict is Verdict.DANGEROUS]


def test_the_corpus_is_large() -> None:
    assert len(CORPUS) >= 40


def test_the_corpus_does_execute_when_it_is_loaded(tmp_path: Path) -> None:
    """Else the canary would prove nothing. Loaded in another process."""
    path = tmp_path / "canary"
    for name in ("os.system", "builtins.exec", "names_from_the_memo", "a_pickle_in_a_pickle", "protocol_0_with_inst"):
        (tmp_path / "p").write_bytes(CORPUS[name](str(path)))
        subprocess.run([sys.executable, "-c", "import pickle; pickle.load(open('p', 'rb'))"], cwd=tmp_path, check=False)
        assert path.exists(), name
        path.unlink()


@pytest.mark.parametrize("name", CORPUS)
def test_a_malicious_pickle_is_read_and_flagged(tmp_path: Path, canary: str, name: str) -> None:
    body = CORPUS[name](canary)
    for suffix, content in (("pkl", body), ("pt", torch_archive(body)), ("pth", legacy_file(body))):
        path = tmp_path / f"model.{suffix}"
        path.write_bytes(content)
        assert dangerous(path), f"{name} was not flagged in a .{suffix}"


def test_the_verdict_names_the_import_and_that_it_is_called(tmp_path: Path, canary: str) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(torch_archive(CORPUS["os.system"](canary)))
    (found,) = imports_of(path)
    assert (found.name, found.verdict, found.called) == ("os.system", Verdict.DANGEROUS, True)


def test_a_broken_pickle_tells_what_it_would_have_run(tmp_path: Path, canary: str) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(torch_archive(CORPUS["payload_before_a_broken_end"](canary)))
    with pytest.raises(FormatError, match=r"Do not load it: it would import os\.system") as caught:
        open_checkpoint(path)
    assert [found.name for found in caught.value.imports] == ["os.system"]


def test_a_second_pickle_in_an_archive_is_looked_at(tmp_path: Path, canary: str) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "model.pt")
    with zipfile.ZipFile(tmp_path / "model.pt", "a") as archive:
        archive.writestr("model/extra.pkl", call("os", "system", shell(canary)))
    index = open_checkpoint(tmp_path / "model.pt")
    assert [entry.name for entry in index.entries] == ["w"]
    assert dangerous(tmp_path / "model.pt") == ["os.system"]


def edited_archive(tmp_path: Path, canary: str, edit: str) -> Path:
    """A file that Python's zipfile refuses and PyTorch's reader loads."""
    body = CORPUS["os.system"](canary)
    content = bytearray(torch_archive(body))
    central, local = content.find(b"PK\x01\x02"), 0
    if edit == "encrypted":
        content[central + 8] |= 1
        content[local + 6] |= 1
    elif edit == "checksum":
        content[central + 16 : central + 20] = b"\0\0\0\0"
    elif edit == "local name":
        content[local + 30 : local + 34] = b"evil"
    elif edit == "upper case":
        content = bytearray(bytes(content).replace(b"data.pkl", b"DATA.PKL"))
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("edit", ["encrypted", "checksum", "local name", "upper case"])
def test_an_archive_made_to_stop_scanners_is_still_read(tmp_path: Path, canary: str, edit: str) -> None:
    assert dangerous(edited_archive(tmp_path, canary, edit)) == ["os.system"]


def test_torch_reads_the_archives_that_are_made_to_stop_scanners(tmp_path: Path, canary: str) -> None:
    """Why they matter: torch's own reader accepts each, so a scanner that gives up protects nobody."""
    for edit in ("upper case", "checksum", "local name"):
        reader = torch._C.PyTorchFileReader(str(edited_archive(tmp_path, canary, edit)))
        assert b"system" in reader.get_record("data.pkl"), edit


def test_a_directory_that_only_torch_finds_is_the_one_that_is_read(tmp_path: Path, canary: str) -> None:
    """Two directories: the end record's offset points to one, its size to the other, as `zipfile` reads it."""
    evil, good = torch_archive(CORPUS["os.system"](canary)), torch_archive(b"\x80\x04}.")
    start, end = good.find(b"PK\x01\x02"), good.rfind(b"PK\x05\x06")
    evil_start, evil_end = evil.find(b"PK\x01\x02"), evil.rfind(b"PK\x05\x06")
    padding = (end - start) - (evil_end - evil_start)
    assert padding == 0
    body = evil[:evil_end] + good[start:end] + evil[evil_end:]
    (tmp_path / "model.pt").write_bytes(body)
    assert b"system" in torch._C.PyTorchFileReader(str(tmp_path / "model.pt")).get_record("data.pkl")
    assert dangerous(tmp_path / "model.pt") == ["os.system"]


def test_a_scripted_archive_with_a_hostile_pickle_is_flagged(tmp_path: Path, canary: str) -> None:
    torch.jit.script(torch.nn.Linear(2, 2)).save(tmp_path / "plain.pt")
    with zipfile.ZipFile(tmp_path / "plain.pt") as old, zipfile.ZipFile(tmp_path / "model.pt", "w") as new:
        for name in old.namelist():
            hostile = name.endswith("constants.pkl")
            new.writestr(name, call("os", "system", shell(canary)) if hostile else old.read(name))
    assert dangerous(tmp_path / "model.pt") == ["os.system"]


def test_scripted_code_that_writes_files_is_only_read(tmp_path: Path, canary: str) -> None:
    class Writer(torch.nn.Module):
        def __init__(self, path: str) -> None:
            super().__init__()
            self.path = path
            self.weight = torch.nn.Parameter(torch.ones(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.save(x, self.path)
            return x * self.weight

    torch.jit.script(Writer(canary)).save(tmp_path / "model.pt")
    assert [entry.name for entry in open_checkpoint(tmp_path / "model.pt").entries] == ["weight"]


def test_a_7z_archive_is_named_and_not_opened(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"7z\xbc\xaf\x27\x1c\x00\x04" + bytes(100))
    with pytest.raises(FormatError, match="looks like a 7z archive"):
        open_checkpoint(tmp_path / "model.pt")


def test_the_distributed_pieces_that_torch_would_unpickle_are_looked_at(tmp_path: Path, canary: str) -> None:
    import pickle

    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, MetadataIndex

    piece = torch_archive(call("os", "system", shell(canary)))
    (tmp_path / "__0_0.distcp").write_bytes(piece)
    stored = {MetadataIndex("epoch"): _StorageInfo("__0_0.distcp", 0, len(piece))}
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Metadata({"epoch": BytesStorageMetadata()}, None, stored)))
    index = open_checkpoint(tmp_path)
    assert [found.name for found in index.imports if found.verdict is Verdict.DANGEROUS] == ["os.system"]


def test_names_with_control_and_half_characters_are_kept_printable(tmp_path: Path) -> None:
    strange = text("a").replace(b"\x01\x00\x00\x00a", b"\x03\x00\x00\x00\xed\xa0\x80")
    (tmp_path / "m.pkl").write_bytes(b"\x80\x04" + strange + text("b\n\x1b[31m") + b"\x93.")
    (found,) = imports_of(tmp_path / "m.pkl")
    found.name.encode("utf-8")


def bomb(size: int, declared: int | None = None) -> bytes:
    """A record that unpacks to `size` zeros and says that it has `declared`."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(bytes(size)) + packer.flush()
    buffer = io.BytesIO()
    name = b"archive/data.pkl"
    fields = (8, 0, 0, 0, len(packed), size if declared is None else declared, len(name), 0)
    buffer.write(struct.pack("<4sHHHHHIIIHH", b"PK\x03\x04", 20, 0, *fields) + name + packed)
    start = buffer.tell()
    entry = (*fields, 0, 0, 0, 0, 0)
    buffer.write(struct.pack("<4sHHHHHHIIIHHHHHII", b"PK\x01\x02", 20, 20, 0, *entry) + name)
    buffer.write(struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 1, 1, buffer.tell() - start, start, 0))
    return buffer.getvalue()


@pytest.mark.parametrize("declared", [None, 100, 2**31])
def test_a_zip_bomb_is_not_unpacked(tmp_path: Path, declared: int | None) -> None:
    (tmp_path / "model.pt").write_bytes(bomb(2**24, declared))
    with pytest.raises(FormatError):
        open_checkpoint(tmp_path / "model.pt")
