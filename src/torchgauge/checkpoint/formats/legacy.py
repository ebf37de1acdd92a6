"""Formats from before PyTorch 1.6 (a tar file, later consecutive pickles) and pickles that torch did not write, such
as numpy weights or an attack. They are read, never run."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace

from torchgauge.checkpoint.byte_source import ByteSource, printable
from torchgauge.checkpoint.dtypes import STORAGE_CLASSES, item_bytes
from torchgauge.checkpoint.entries import Place
from torchgauge.checkpoint.formats.safetensors import is_safetensors
from torchgauge.checkpoint.formats.torch_zip import index_of_pickle, storage_of
from torchgauge.checkpoint.index import Index
from torchgauge.checkpoint.limits import DIMENSIONS
from torchgauge.checkpoint.pickle import GLOBAL_LINE, OPCODES, PROTOCOL_MARKS, PickleMachine, scan_followers
from torchgauge.checkpoint.pickle.imports import ImportLog
from torchgauge.checkpoint.pickle.rebuild import sizes, whole
from torchgauge.checkpoint.pickle.values import Global, Instance, Storage, Tensor, any_storage
from torchgauge.checkpoint.registry import FILES, opens
from torchgauge.checkpoint.signatures import LEGACY_MAGIC, describe_pickle, not_a_model
from torchgauge.errors import FormatError
from torchgauge.progress import Progress

_PROTOCOL = 1001


def is_legacy(source: ByteSource) -> bool:
    """The first pickle is the magic number, as bytes or, in protocol 0, as digits."""
    head = source.head(64)
    return LEGACY_MAGIC.to_bytes(10, "little") in head or str(LEGACY_MAGIC).encode() in head


def _next_pickle(
    source: ByteSource, log: ImportLog, at: int, persistent: Callable[[object], object] = any_storage
) -> tuple[object, int]:
    """The value of the pickle at `at`, and the position after it."""
    machine = PickleMachine(source, log, start=at, persistent=persistent)
    return machine.run(), machine.position


@opens(FILES, "torch-legacy", is_legacy)
def open_legacy(source: ByteSource, progress: Progress) -> Index:
    """Five pickles (magic number, protocol, facts about the machine, the value, the keys of the storages), then the
    storages: the number of elements of each in 8 bytes, and the elements."""
    storages: dict[str, Storage] = {}

    def remember(identifier: object) -> object:
        storage = storage_of(identifier)
        if isinstance(storage, Storage):
            storages.setdefault(storage.key, storage)
        return storage

    def locate(storage: Storage) -> Place:
        if storage.key not in places:
            raise FormatError(f"{source.label}: the data of storage {printable(storage.key)} is missing")
        return places[storage.key]

    with ImportLog() as log:
        values, at = [], 0
        for _ in range(5):
            value, at = _next_pickle(source, log, at, remember)
            values.append(value)
        magic, protocol, facts, value, keys = values
        if magic != LEGACY_MAGIC or protocol != _PROTOCOL:
            raise FormatError(f"{source.label}: begins like an old torch file but has an unknown protocol")
        if not isinstance(keys, list):
            raise FormatError(f"{source.label}: the list of its storages is missing")
        places: dict[str, Place] = {}
        for key in keys:
            storage = storages.get(str(key)) if isinstance(key, str | int) and not isinstance(key, bool) else None
            if storage is None:
                raise FormatError(f"{source.label}: it lists a storage that no tensor uses")
            count = int.from_bytes(source.read(at, 8), "little", signed=True)
            size = count * item_bytes(storage.dtype or "uint8")
            part = source.part(at + 8, size, f"{source.label}: storage {printable(str(key))}")
            places[storage.key] = Place(source.path, part.position(0), size)
            at += 8 + size
        is_big = isinstance(facts, dict) and facts.get("little_endian") is False
        return index_of_pickle("torch-legacy", source.path, value, locate, log, big_endian=is_big)


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
                return identifier[0]  # a module's class, stored with its source code
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


_KINDS = ((dict, "a dict"), ((list, tuple), "a list"), (str, "a text"), ((int, float), "a number"))
_TRIED_BYTES = 2**20


def is_pickle(source: ByteSource) -> bool:
    """Protocols from 2 start with a mark; older ones are tried, because text that looks like a pickle soon fails."""
    head = source.head(2)
    if is_legacy(source) or is_safetensors(source):
        return False
    if head in PROTOCOL_MARKS:
        return True
    if not head or head[0] not in OPCODES:
        return False
    log = ImportLog()
    try:
        PickleMachine(source.part(0, min(source.size, _TRIED_BYTES), source.label), log, persistent=any_storage).run()
    except FormatError:
        return bool(log.dangerous) and GLOBAL_LINE.search(source.head(4096)) is not None
    return True


@opens(FILES, "pickle", is_pickle)
def open_pickle(source: ByteSource, progress: Progress) -> Index:
    def locate(storage: Storage) -> Place:
        raise FormatError("a torch pickle without its tensor data")

    with ImportLog() as log:
        machine = PickleMachine(source, log, persistent=storage_of)
        value, failure = None, None
        try:
            value = machine.run()
        except FormatError as error:  # joblib writes the bytes of arrays between the opcodes
            failure = error
        if library := describe_pickle(found.name for found in log.imports):
            raise not_a_model(source.label, library) from failure
        if failure is not None:
            raise failure
        warnings = scan_followers(source, log, machine.position)
        index = index_of_pickle("pickle", source.path, value, locate, log)
        if index.entries or index.modules:
            return replace(index, warnings=tuple(warnings))
        if isinstance(value, Instance):
            kind = f"an object of {printable(value.type_path)}"
        elif isinstance(value, Global):
            kind = f"the name {printable(value.path)}"
        else:
            kind = next((words for kind, words in _KINDS if isinstance(value, kind)), "a single value")
        raise not_a_model(source.label, f"a pickle of {kind}, without tensors")
