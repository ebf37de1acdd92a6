"""`torch.save` before PyTorch 1.6: five consecutive pickles, then the raw bytes of the storages."""

from __future__ import annotations

from collections.abc import Callable

from torchgauge.checkpoint.byte_source import ByteSource, printable
from torchgauge.checkpoint.dtypes import item_bytes
from torchgauge.checkpoint.entries import Place
from torchgauge.checkpoint.formats.torch_zip import index_of_pickle, storage_of
from torchgauge.checkpoint.index import Index
from torchgauge.checkpoint.pickle import PickleMachine
from torchgauge.checkpoint.pickle.imports import ImportLog
from torchgauge.checkpoint.pickle.values import Storage
from torchgauge.checkpoint.registry import FILES, opens
from torchgauge.errors import FormatError
from torchgauge.progress import Progress

MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
_MAGIC_BYTES = MAGIC_NUMBER.to_bytes(10, "little")
_PROTOCOL = 1001


def is_legacy(source: ByteSource) -> bool:
    """The first pickle is the magic number, as bytes or, in protocol 0, as digits."""
    head = source.head(64)
    return _MAGIC_BYTES in head or str(MAGIC_NUMBER).encode() in head


@opens(FILES, "torch-legacy", is_legacy)
def open_legacy(source: ByteSource, progress: Progress) -> Index:
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
        reader = _PickleReader(source, log, remember)
        magic, protocol, facts, value, keys = (reader.next() for _ in range(5))
        if magic != MAGIC_NUMBER or protocol != _PROTOCOL:
            raise FormatError(f"{source.label}: begins like an old torch file but is of another protocol")
        places = _storage_places(source, reader.position, keys, storages)
        is_big = isinstance(facts, dict) and facts.get("little_endian") is False
        return index_of_pickle("torch-legacy", source.path, value, locate, log, big_endian=is_big)


class _PickleReader:
    """Reads consecutive pickles."""

    def __init__(self, source: ByteSource, log: ImportLog, persistent: Callable[[object], object]) -> None:
        self._source, self._log, self._persistent = source, log, persistent
        self.position = 0

    def next(self) -> object:
        machine = PickleMachine(self._source, self._log, start=self.position, persistent=self._persistent)
        value = machine.run()
        self.position = machine.position
        return value


def _storage_places(source: ByteSource, at: int, keys: object, storages: dict[str, Storage]) -> dict[str, Place]:
    """Each storage: its number of elements in 8 bytes, then the elements."""
    if not isinstance(keys, list):
        raise FormatError(f"{source.label}: the list of its storages is missing")
    places: dict[str, Place] = {}
    for key in keys:
        storage = storages.get(str(key)) if isinstance(key, str | int) and not isinstance(key, bool) else None
        if storage is None:
            raise FormatError(f"{source.label}: it lists a storage that no tensor has")
        count = int.from_bytes(source.read(at, 8), "little", signed=True)
        size = count * item_bytes(storage.dtype or "uint8")
        part = source.part(at + 8, size, f"{source.label}: storage {printable(str(key))}")
        places[storage.key] = Place(source.path, part.position(0), size)
        at += 8 + size
    return places
