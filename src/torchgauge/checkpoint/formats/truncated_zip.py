"""A truncated `torch.save` archive, without the central directory at its end.

Every record has a local header. The pickle comes first and gives the sizes of the storages that follow, which most
writers only store in a data descriptor after the record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from torchgauge.checkpoint.byte_source import ByteSource, printable
from torchgauge.checkpoint.dtypes import item_bytes
from torchgauge.checkpoint.entries import Place
from torchgauge.checkpoint.formats.torch_zip import index_of_pickle, storage_of
from torchgauge.checkpoint.index import Index
from torchgauge.checkpoint.pickle import PickleMachine, scan_followers
from torchgauge.checkpoint.pickle.imports import ImportLog
from torchgauge.checkpoint.pickle.values import Storage
from torchgauge.checkpoint.zip_archive import has_directory, noted_size, read_local, record_end
from torchgauge.errors import FormatError

_PICKLE, _STORAGES = "data.pkl", "data/"
_NAMED_TENSORS = 5


def is_cut_archive(source: ByteSource) -> bool:
    """TorchScript archives and exported programs start with other records."""
    header = read_local(source, 0)
    if header is None or not header.is_plain or has_directory(source):
        return False
    return header.name.count("/") == 1 and header.name.endswith(f"/{_PICKLE}")


def open_cut_archive(source: ByteSource) -> Index:
    with ImportLog() as log:
        pickle = _read_pickle(source, log)
        records = dict(_records(source, pickle))
        start, size = records.get("byteorder") or (0, 0)
        content = source.read(start, size) if 0 < size <= 2**10 and start + size <= source.size else b""
        is_big = content == b"big"
        locate = _Places(source, records, pickle.sizes).locate
        byteorder = "big" if is_big else "little"
        container = {"archive_version": None, "format_version": None, "byteorder": byteorder}
        index = index_of_pickle("torch", source.path, pickle.value, locate, log, big_endian=is_big, container=container)
        end = source.start + source.size
        lost = [
            entry.name
            for entry in index.entries
            if not (entry.offset is None or not entry.nbytes or entry.offset + entry.nbytes <= end)
        ]
        if lost and len(lost) == len(index.entries):
            raise FormatError(
                f"{source.label}: the data of all tensors is missing at its end; is the download complete?"
            )
        more = f" and {len(lost) - _NAMED_TENSORS:,} more" if len(lost) > _NAMED_TENSORS else ""
        names = f" ({', '.join(map(printable, lost[:_NAMED_TENSORS]))}{more})" if lost else ""
        what_is_lost = (
            f"{source.label}: its directory is missing at its end, and with it {len(lost):,} of "
            f"{len(index.entries):,} tensors{names}; is the download complete?"
        )
        return replace(index, warnings=(what_is_lost, *pickle.warnings))


@dataclass(frozen=True, slots=True)
class _Pickle:
    """`sizes` are those of the storages by their keys; `end` is where the next record begins, if one does."""

    value: object
    root: str
    sizes: Mapping[str, int]
    end: int | None
    warnings: list[str]


def _read_pickle(source: ByteSource, log: ImportLog) -> _Pickle:
    header = read_local(source, 0)
    if header is None or not header.is_plain:
        raise FormatError(f"{source.label}: a zip archive without its directory; is it cut off?")
    sizes: dict[str, int] = {}
    body = source.part(header.start, source.size - header.start, f"{source.label}:{printable(header.name)}")

    def persistent(identifier: object) -> object:
        storage = storage_of(identifier)
        if isinstance(storage, Storage):
            size = storage.numel * (1 if storage.dtype is None else item_bytes(storage.dtype))
            sizes.setdefault(storage.key, size)
        return storage

    machine = PickleMachine(body, log, persistent=persistent)
    try:
        value = machine.run()
    except FormatError as error:
        message = f"{source.label}: its end is missing: is it cut off? Its pickle cannot be read: {error}"
        raise FormatError(message) from error
    size = noted_size(source, header, machine.position) if header.size is None else header.size
    record = body.part(0, min(size or body.size, body.size), body.label)
    warnings = scan_followers(record, log, machine.position)
    end = None if size is None else record_end(source, header, size)
    return _Pickle(value, header.name.removesuffix(_PICKLE), sizes, end, warnings)


def _records(source: ByteSource, pickle: _Pickle) -> Iterator[tuple[str, tuple[int, int]]]:
    """Where the records after the pickle begin and how long they are, by their names; the last may be cut."""
    at = pickle.end
    while True:
        header = None if at is None else read_local(source, at)
        if header is None or not header.is_plain:
            return
        name = header.name.removeprefix(pickle.root)
        size = header.size
        if size is None:
            key = name.removeprefix(_STORAGES)
            size = pickle.sizes.get(key) if key != name else noted_size(source, header)
        if size is None:
            return
        yield name, (header.start, size)
        at = record_end(source, header, size)


class _Places:
    def __init__(self, source: ByteSource, records: Mapping[str, tuple[int, int]], sizes: Mapping[str, int]) -> None:
        self._source, self._records, self._sizes = source, records, sizes

    def locate(self, storage: Storage) -> Place:
        """A storage whose record is not there has its place after the end: whoever reads it will say so by name."""
        start, size = self._records.get(_STORAGES + storage.key, (self._source.size, self._sizes.get(storage.key, 0)))
        return Place(self._source.path, self._source.position(start), size)
