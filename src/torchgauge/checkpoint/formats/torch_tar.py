"""The oldest torch format (up to 0.1.9): a tar file with storages, tensors and a pickle."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from torchgauge.checkpoint.byte_source import ByteSource
from torchgauge.checkpoint.dtypes import STORAGE_CLASSES, item_bytes
from torchgauge.checkpoint.entries import Place
from torchgauge.checkpoint.formats.torch_zip import index_of_pickle
from torchgauge.checkpoint.index import Index
from torchgauge.checkpoint.limits import DIMENSIONS
from torchgauge.checkpoint.pickle import PickleMachine
from torchgauge.checkpoint.pickle.imports import ImportLog
from torchgauge.checkpoint.pickle.rebuild import sizes, whole
from torchgauge.checkpoint.pickle.values import Global, Storage, Tensor, any_storage
from torchgauge.checkpoint.registry import FILES, opens
from torchgauge.errors import FormatError
from torchgauge.progress import Progress

_BLOCK_BYTES = 512
_PARTS = ("pickle", "storages", "tensors")
_MAX_MEMBERS = 64
_MAX_TENSORS = 1_000_000


def tar_members(source: ByteSource) -> dict[str, ByteSource]:
    """The regular files among the first few members, by name."""
    members: dict[str, ByteSource] = {}
    at = 0
    for _ in range(_MAX_MEMBERS):
        if at + _BLOCK_BYTES > source.size:
            break
        header = source.read(at, _BLOCK_BYTES)
        digits = header[124:136].strip(b"\0 ")
        size = int(digits, 8) if digits and all(digit in b"01234567" for digit in digits) else None
        if size is None or header[257:262] != b"ustar" or at + _BLOCK_BYTES + size > source.size:
            break
        if header[156:157] in (b"0", b"\0"):
            name = header[:100].rstrip(b"\0").decode("utf-8", "replace").removeprefix("./")
            members[name] = source.part(at + _BLOCK_BYTES, size, f"{source.label}:{name}")
        at += _BLOCK_BYTES + -(-size // _BLOCK_BYTES) * _BLOCK_BYTES
    return members


def is_torch_tar(source: ByteSource) -> bool:
    return source.size >= _BLOCK_BYTES and source.read(257, 5) == b"ustar" and set(_PARTS) <= set(tar_members(source))


@opens(FILES, "torch-tar", is_torch_tar)
def open_torch_tar(source: ByteSource, progress: Progress) -> Index:
    with ImportLog() as log:
        members = tar_members(source)
        storages = _read_storages(members["storages"], log)
        part = members["tensors"]
        count, at = _next_pickle(part, log, 0)
        tensors: dict[str, Tensor] = {}
        for _ in range(min(whole(count), _MAX_TENSORS)):
            described, at = _next_pickle(part, log, at)
            key, storage_key = _described(described, 1)
            held = storages.get(str(storage_key) if isinstance(storage_key, int) else "")
            if held is None:
                raise FormatError(f"{part.label}: a tensor without a storage")
            dimensions = int.from_bytes(part.read(at, 4), "little", signed=True)
            if not 0 <= dimensions <= DIMENSIONS:
                raise FormatError(f"{part.label}: a tensor of {dimensions} dimensions")
            numbers = struct.unpack(f"<{2 * dimensions + 1}q", part.read(at + 8, 8 * (2 * dimensions + 1)))
            shape, stride = sizes(numbers[:dimensions]), sizes(numbers[dimensions:-1])
            offset, at = whole(numbers[-1]), at + 8 + 8 * len(numbers)
            tensors[key] = Tensor(held.storage, held.storage.dtype or "uint8", shape, stride, offset)

        def persistent(identifier: object) -> object:
            if isinstance(identifier, tuple) and identifier:
                return identifier[0]  # a module's class, with its source beside it
            key = str(identifier) if isinstance(identifier, str | int) else ""
            if key in tensors:
                return tensors[key]
            if key in storages:
                return storages[key].storage
            raise FormatError("the pickle refers to a tensor that the file does not hold")

        value = PickleMachine(members["pickle"], log, persistent=persistent).run()
        places = {key: held.place for key, held in storages.items()}
        return index_of_pickle("torch-tar", source.path, value, lambda storage: places[storage.key], log)


@dataclass(frozen=True, slots=True)
class _Held:
    storage: Storage
    place: Place


def _read_storages(part: ByteSource, log: ImportLog) -> dict[str, _Held]:
    count, at = _next_pickle(part, log, 0)
    held: dict[str, _Held] = {}
    for _ in range(min(whole(count), _MAX_TENSORS)):
        described, at = _next_pickle(part, log, at)
        key, kind = _described(described, 2)
        dtype = STORAGE_CLASSES.get(kind.name) if isinstance(kind, Global) else None
        if dtype is None:
            raise FormatError(f"{part.label}: a storage of an unknown type")
        numel = int.from_bytes(part.read(at, 8), "little", signed=True)
        data = part.part(at + 8, numel * item_bytes(dtype), f"{part.label}: storage {key}")
        held[key] = _Held(Storage(key, dtype, numel), Place(part.path, data.position(0), data.size))
        at += 8 + data.size
    views, _ = _next_pickle(part, log, at)
    for view in views if isinstance(views, list) else []:
        if not isinstance(view, tuple) or len(view) != 4 or str(whole(view[1])) not in held:
            raise FormatError("a storage view in the file is corrupt")
        root = held[str(view[1])]
        storage = Storage(root.storage.key, root.storage.dtype, whole(view[3]), whole(view[2]))
        held[str(whole(view[0]))] = _Held(storage, root.place)
    return held


def _described(value: object, second: int) -> tuple[str, object]:
    """`(key, x, y)`: the key and one of the others."""
    if not isinstance(value, tuple) or len(value) != 3:
        raise FormatError("a description in the tar file is corrupt")
    return str(whole(value[0])), value[second]


def _next_pickle(part: ByteSource, log: ImportLog, at: int) -> tuple[object, int]:
    machine = PickleMachine(part, log, start=at, persistent=any_storage)
    value = machine.run()
    return value, machine.position
