"""Files of `torch.save` whose end is missing: what stands before the cut is read, what does not is named."""

from __future__ import annotations

import io
import json
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.checkpoint.malicious import CORPUS, torch_archive
from tests.checkpoint.pickle_writing import call, shell
from tests.checkpoint.test_damaged_files import number, tensor_pickle
from torchgauge.analysis import scan_weights
from torchgauge.checkpoint import Entry, Verdict, open_checkpoint, sniff
from torchgauge.cli import main
from torchgauge.errors import FormatError

TENSORS = {"a": torch.arange(6.0), "b": torch.arange(5, dtype=torch.int64), "c.w": torch.ones(7, dtype=torch.bfloat16)}


def saved(tensors: dict[str, Tensor]) -> bytes:
    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    return buffer.getvalue()


def without_directory(content: bytes) -> bytes:
    return content[: content.find(b"PK\x01\x02")]


def written(folder: Path, content: bytes) -> Path:
    (folder / "m.pt").write_bytes(content)
    return folder / "m.pt"


def content_of(entry: Entry) -> bytes:
    assert entry.offset is not None
    return Path(entry.file).read_bytes()[entry.offset : entry.offset + entry.nbytes]


def bytes_of(tensor: Tensor) -> bytes:
    return bytes(tensor.untyped_storage())


def storage_starts(content: bytes, folder: Path) -> dict[str, int]:
    """Where the bytes of each tensor begin, as the whole file has it."""
    return {entry.name: entry.offset or 0 for entry in open_checkpoint(written(folder, content)).entries}


def archive(pickle: bytes, records: dict[str, bytes], *, width: int, flags: int = 0x8) -> bytes:
    """As writers that do not know the sizes beforehand make it: a note after each record, its sizes `width` wide."""
    parts = []
    for name, body in {"data.pkl": pickle, **records}.items():
        path = f"archive/{name}".encode()
        parts += [struct.pack("<4s5H3L2H", b"PK\x03\x04", 20, flags, 0, 0, 0, 0, 0, 0, len(path), 0), path, body]
        sizes = len(body).to_bytes(width, "little") * 2
        parts += [b"PK\x07\x08" + zlib.crc32(body).to_bytes(4, "little") + sizes]
    return b"".join(parts)


def pickle_of(content: bytes) -> bytes:
    """The pickle of a whole file."""
    with zipfile.ZipFile(io.BytesIO(content)) as whole:
        return whole.read(next(name for name in whole.namelist() if name.endswith("data.pkl")))


RECORDS = {f"data/{key}": bytes_of(tensor) for key, tensor in enumerate(TENSORS.values())}


def test_without_its_directory_all_tensors_are_there(tmp_path: Path) -> None:
    path = written(tmp_path, without_directory(saved(TENSORS)))
    index = open_checkpoint(path)
    assert {entry.name: content_of(entry) for entry in index.entries} == {
        name: bytes_of(tensor) for name, tensor in TENSORS.items()
    }
    assert index.warnings == (
        "m.pt: the end of the file is missing, and with it 0 of 3 tensors; is the download complete?",
    )
    assert (sniff(path), index.format) == ("torch", "torch")


def test_tensors_before_the_cut_are_read_and_the_others_named(tmp_path: Path) -> None:
    content = saved(TENSORS)
    starts = storage_starts(content, tmp_path)
    names = list(TENSORS)
    for cut in range(starts["a"] + TENSORS["a"].nbytes, content.find(b"PK\x01\x02")):
        index = open_checkpoint(written(tmp_path, content[:cut]))
        assert [entry.spec.shape for entry in index.entries] == [tuple(tensor.shape) for tensor in TENSORS.values()]
        lost = [name for name in names if starts[name] + TENSORS[name].nbytes > cut]
        whole = {entry.name: content_of(entry) for entry in index.entries if entry.name not in lost}
        assert whole == {name: bytes_of(TENSORS[name]) for name in names if name not in lost}
        told = f"{len(lost)} of 3 tensors" + (f" ({', '.join(lost)})" if lost else "")
        assert told in index.warnings[0]


def test_a_file_cut_before_its_first_tensor_is_refused(tmp_path: Path) -> None:
    content = saved(TENSORS)
    for cut in range(4, storage_starts(content, tmp_path)["a"] + 1, 7):
        with pytest.raises(FormatError, match=r"end of the file is missing|is the download complete|cut off"):
            open_checkpoint(written(tmp_path, content[:cut]))


@pytest.mark.parametrize("width", [4, 8])
def test_notes_of_both_widths_are_read(tmp_path: Path, width: int) -> None:
    records = {"byteorder": b"little", ".storage_alignment": b"64", "empty": b"", **RECORDS}
    index = open_checkpoint(written(tmp_path, archive(pickle_of(saved(TENSORS)), records, width=width)))
    assert [content_of(entry) for entry in index.entries] == list(RECORDS.values())


def test_sizes_in_the_headers_are_read(tmp_path: Path) -> None:
    content = torch_archive(pickle_of(saved(TENSORS)), **{name.replace("/", "__"): x for name, x in RECORDS.items()})
    index = open_checkpoint(written(tmp_path, without_directory(content)))
    assert [content_of(entry) for entry in index.entries] == list(RECORDS.values())


def test_a_large_record_has_its_sizes_in_an_extra_field(tmp_path: Path) -> None:
    name, body, pickle = b"archive/data/0", bytes_of(TENSORS["a"]), pickle_of(saved({"a": TENSORS["a"]}))
    extra = struct.pack("<HHQQ", 1, 16, len(body), len(body))
    sizes = (0xFFFFFFFF, 0xFFFFFFFF)
    header = struct.pack("<4s5H3L2H", b"PK\x03\x04", 45, 0, 0, 0, 0, 0, *sizes, len(name), len(extra))
    content = archive(pickle, {}, width=4) + header + name + extra + body
    (entry,) = open_checkpoint(written(tmp_path, content)).entries
    assert content_of(entry) == body


def test_a_record_in_the_words_of_a_note_is_no_end(tmp_path: Path) -> None:
    """A note counts only where it fits the bytes before it."""
    records = {"byteorder": b"PK\x07\x08" + bytes(8) + b"\x05" + bytes(11), **RECORDS}
    index = open_checkpoint(written(tmp_path, archive(pickle_of(saved(TENSORS)), records, width=4)))
    assert [content_of(entry) for entry in index.entries] == list(RECORDS.values())


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda data: data.replace(b"archive/data/1", b"archive/data/9"), id="another name"),
        pytest.param(lambda data: _put(data, b"archive/data/1", -4, "<H", 60_000), id="a name past the end"),
        pytest.param(lambda data: _put(data, b"archive/data/1", -22, "<H", 8), id="compressed"),
        pytest.param(lambda data: _put(data, b"archive/data/1", -24, "<H", 9), id="encrypted"),
        pytest.param(lambda data: _put(data, b"archive/data/1", -12, "<L", 77), id="two sizes"),
    ],
)
def test_what_follows_a_damaged_record_is_lost(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    content = archive(pickle_of(saved(TENSORS)), RECORDS, width=4)
    damaged = spoil(content)
    assert damaged != content
    index = open_checkpoint(written(tmp_path, damaged))
    assert content_of(index.entries[0]) == RECORDS["data/0"]
    assert "2 of 3 tensors (b, c.w)" in index.warnings[0]


def _put(data: bytes, name: bytes, at: int, form: str, value: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into(form, changed, data.find(name) + at, value)
    return bytes(changed)


def test_without_notes_nothing_is_believed(tmp_path: Path) -> None:
    content = archive(pickle_of(saved(TENSORS)), RECORDS, width=4).replace(b"PK\x07\x08", b"PK\x07\x09")
    with pytest.raises(FormatError, match="the data of all tensors is missing"):
        open_checkpoint(written(tmp_path, content))


def test_a_storage_larger_than_any_file_is_lost(tmp_path: Path) -> None:
    huge = tensor_pickle(number(2**62), number(0), number(2**62), number(1))
    with pytest.raises(FormatError, match="the data of all tensors is missing at its end"):
        open_checkpoint(written(tmp_path, archive(huge, {"data/0": bytes(24)}, width=8)))


def test_many_records_without_a_directory_are_read_in_one_pass(tmp_path: Path) -> None:
    tensors = {f"layers.{i}.weight": torch.full((3,), float(i)) for i in range(2000)}
    index = open_checkpoint(written(tmp_path, without_directory(saved(tensors))))
    assert content_of(index.entries[-1]) == bytes_of(tensors["layers.1999.weight"])


@pytest.mark.parametrize("name", CORPUS)
def test_a_cut_file_tells_what_its_pickle_would_run(tmp_path: Path, name: str) -> None:
    canary = tmp_path / "canary"
    path = written(tmp_path, without_directory(torch_archive(CORPUS[name](str(canary)))))
    try:
        imports = open_checkpoint(path).imports
    except FormatError as error:
        imports = error.imports
    assert any(found.verdict is Verdict.DANGEROUS for found in imports)
    assert not canary.exists()


def test_a_pickle_after_the_pickle_is_looked_at(tmp_path: Path) -> None:
    body = pickle_of(saved({"a": TENSORS["a"]})) + call("os", "system", shell(str(tmp_path / "canary")))
    content = archive(body, {"data/0": RECORDS["data/0"]}, width=4)
    try:
        imports = open_checkpoint(written(tmp_path, content)).imports
    except FormatError as error:
        imports = error.imports
    assert "os.system" in {found.name for found in imports}


@pytest.mark.parametrize("rounds", [150, pytest.param(5000, marks=pytest.mark.slow)])
def test_flipped_bytes_of_a_cut_file_never_escape_as_another_error(tmp_path: Path, rounds: int) -> None:
    chance, content = random.Random(7), without_directory(saved(TENSORS))
    for turn in range(rounds):
        damaged = bytearray(content[: chance.randrange(200, len(content))])
        for _ in range(1 + turn % 4):
            damaged[chance.randrange(4, len(damaged))] = chance.randrange(256)
        try:
            index = open_checkpoint(written(tmp_path, bytes(damaged)))
        except FormatError:
            continue
        for entry in index.entries:
            assert entry.offset is None or entry.offset >= 0
            entry.name.encode("utf-8")


def test_the_rest_of_a_cut_file_is_scanned_and_the_lost_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = saved(TENSORS)
    path = written(tmp_path, content[: storage_starts(content, tmp_path)["b"] + 3])
    assert main(["weights", str(path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert {row["name"]: row["mean"] for row in found["weights"] if "mean" in row} == {"a": 2.5}
    assert [row["name"] for row in found["weight_summary"]["failures"]] == ["b", "c.w"]
    assert "2 of 3 tensors (b, c.w)" in found["capture"]["warnings"][0]


def test_a_scan_of_a_file_without_its_directory_is_that_of_the_whole(tmp_path: Path) -> None:
    content = saved(TENSORS)
    whole, cut = (
        scan_weights(str(written(tmp_path, data))).to_dict()["weights"]
        for data in (content, without_directory(content))
    )
    assert cut == whole
