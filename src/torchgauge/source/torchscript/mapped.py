"""Opens an archive with its tensors mapped from the file: they have their values and take no memory until one looks.

Torch's reader copies every tensor into memory, and onto the meta device it loses the constants, whose values torch
compares while it compiles. Only `torch.package` is given its storages from outside, so the code and the pickles are
handed over in its layout, and the storages beside them.
"""

from __future__ import annotations

import io
import mmap
import pickletools
import warnings
import zipfile
from collections import deque
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch

from torchgauge.checkpoint.byte_source import opened
from torchgauge.checkpoint.zip_archive import Record, ZipArchive
from torchgauge.errors import FormatError

# `torch.package` has one set of storages for both pickles; here each has its own, numbered from 0.
_CONSTANTS = "constants/"
_ALIGNMENT = 16  # bytes: of the widest element, complex128
_LONGEST_KEY = 64


def import_mapped(unit: Any, path: str, contents: Mapping[str, bytes]) -> Any:
    """The inner object of a script module, as `torch._C.import_ir_module` gives it. `contents` are the records of the
    archive that are code, pickles and versions."""
    packaged = io.BytesIO()
    with zipfile.ZipFile(packaged, "w") as archive:
        for name, content in contents.items():
            if name == "constants.pkl":
                content = with_prefixed_storages(content, _CONSTANTS)
            folder = ".data/ts_code/" if name.startswith("code/") else ".data/ts_code/0/" if ".pkl" in name else ""
            archive.writestr(f"archive/{folder}{name}", content)
    packaged.seek(0)
    reader: Any = torch._C.PyTorchFileReader
    return torch._C._import_ir_module_from_package(
        unit, reader(packaged), _mapped_storages(path), torch.device("cpu"), "0"
    )


def _mapped_storages(path: str) -> Any:
    storages: Any = torch._C.DeserializationStorageContext()
    with opened(path) as source:
        archive = ZipArchive(source)
        view = mmap.mmap(source.stream.fileno(), 0, access=mmap.ACCESS_READ)
        for record in archive.records.values():
            name = record.name.removeprefix(archive.root)
            folder, _, key = name.partition("/")
            if key and folder in ("data", "constants"):
                storages.add_storage(
                    key if folder == "data" else f"{_CONSTANTS}{key}", _bytes_of(archive, record, view)
                )
    return storages


def _bytes_of(archive: ZipArchive, record: Record, view: mmap.mmap) -> torch.Tensor:
    """The bytes of a record; copied where they are compressed or do not lie as torch would have them in memory."""
    if not record.size:
        return torch.empty(0, dtype=torch.uint8)
    offset = None if record.method else archive.source.position(archive.plain_offset(record))
    with warnings.catch_warnings():
        # The mapping cannot be written to, and nothing writes: a static pass computes on copies of small tensors.
        warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)
        if offset is None or offset % _ALIGNMENT:
            return torch.frombuffer(bytearray(archive.read(record)), dtype=torch.uint8)
        return torch.frombuffer(view, dtype=torch.uint8, count=record.size, offset=offset)


def with_prefixed_storages(pickle: bytes, prefix: str) -> bytes:
    """The pickle with `prefix` before the key of every storage, `("storage", type, key, location, elements)`.

    A text that occurs again is referred to by a number: where its first place was a key, it is written out again.
    """
    memo: dict[int, tuple[str, int]] = {}  # texts by number, and where they were written
    edits: dict[int, tuple[int, str]] = {}  # by start: end and the text that stands there instead
    last: deque[tuple[str, int, int, str | None, int]] = deque(maxlen=8)  # opcode, start, end, text, where written
    for (code, argument, position), (_, _, end) in pairwise(pickletools.genops(pickle)):
        start, text = int(position or 0), None
        written = start
        if code.name in ("BINPUT", "LONG_BINPUT"):
            memo.pop(int(str(argument)), None)
            if last and last[-1][3] is not None:
                memo[int(str(argument))] = (last[-1][3], last[-1][4])
            continue
        if code.name == "BINUNICODE":
            text = str(argument)
        elif code.name in ("BINGET", "LONG_BINGET") and int(str(argument)) in memo:
            text, written = memo[int(str(argument))]
            if written in edits:
                edits[start] = (int(end or 0), text)
        last.append((code.name, start, int(end or 0), text, written))
        if code.name != "BINPERSID":
            continue
        names = [item[0] for item in last]
        if len(last) < 8 or names[0] != "MARK" or names[-2] != "TUPLE" or last[1][3] != "storage":
            raise FormatError("a storage in its constants is not described as torch does it")
        _, begin, stop, key, _ = last[3]
        if key is None or len(key) > _LONGEST_KEY:
            raise FormatError("a storage in its constants has no name, or one that is too long")
        edits[begin] = (stop, prefix + key)
    pieces, done = [], 0
    for begin, (stop, text) in sorted(edits.items()):
        spelled = text.encode()
        pieces += [pickle[done:begin], b"X", len(spelled).to_bytes(4, "little"), spelled]
        done = stop
    return b"".join((*pieces, pickle[done:]))
