"""`torch.save` since PyTorch 1.6: a zip archive with a pickle and one record per storage.

In a truncated archive the central directory at the end is missing, but every record has a local header. The pickle
comes first and gives the sizes of the storages that follow, which most writers only store in a data descriptor after
the record.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from torchgauge.checkpoint.byte_source import ByteSource, parse_json, printable
from torchgauge.checkpoint.dtypes import STORAGE_CLASSES, UNTYPED_STORAGE_CLASSES, item_bytes
from torchgauge.checkpoint.entries import Place, list_entries, unpack_packed
from torchgauge.checkpoint.index import Deflated, Index
from torchgauge.checkpoint.pickle import GLOBAL_LINE, PROTOCOL_MARKS, PickleMachine, scan_followers
from torchgauge.checkpoint.pickle.imports import ImportLog
from torchgauge.checkpoint.pickle.rebuild import whole
from torchgauge.checkpoint.pickle.values import Data, Global, Storage, any_storage
from torchgauge.checkpoint.pickle.walk import walk
from torchgauge.checkpoint.registry import ARCHIVES, opens
from torchgauge.checkpoint.training import describe_training
from torchgauge.checkpoint.zip_archive import (
    ZIP_MARK,
    Record,
    ZipArchive,
    has_directory,
    noted_size,
    read_local,
    record_end,
)
from torchgauge.errors import FormatError
from torchgauge.progress import Progress
from torchgauge.units import format_names

_CHECKED_BYTES = 2**26
_PICKLE_SUFFIXES = (".pkl", ".pickle", ".pt", ".joblib")
_OTHER_FOLDERS = ("data", "constants", "tensors", "code")
_HEAD_BYTES = 4096


def is_torch_archive(archive: ZipArchive) -> bool:
    """TorchScript archives have this pickle too, but also constants."""
    return archive.find(archive.root + "data.pkl") is not None and archive.find(archive.root + "constants.pkl") is None


@opens(ARCHIVES, "torch", is_torch_archive)
def open_torch_zip(archive: ZipArchive, progress: Progress) -> Index:
    with ImportLog() as log:
        value = read_pickle(archive, archive.root + "data.pkl", log)
        scan_other_pickles(archive, log, read={archive.root + "data.pkl"})
        index = index_of_pickle(
            "torch",
            archive.source.path,
            value,
            storage_places(archive, archive.root + "data/"),
            log,
            big_endian=archive.is_big_endian,
        )
        return replace(index, warnings=tuple(archive.warnings))


def index_of_pickle(
    format: str,
    path: str,
    value: object,
    locate: Callable[[Storage], Place],
    log: ImportLog,
    *,
    big_endian: bool = False,
) -> Index:
    """The index of a file whose pickle holds `value`: a state dict, a training checkpoint or a module.

    `locate` returns where the bytes of a storage are.
    """
    found = walk(value)
    listing = list_entries(found.tensors, locate, path, big_endian=big_endian, is_module=found.is_module)
    return Index(
        path=path,
        format=format,
        files=(path,),
        entries=unpack_packed(listing.entries),
        imports=log.imports,
        modules=tuple(found.modules),
        training=describe_training(value, listing.entries),
        model_prefix=listing.model_prefix,
    )


def read_pickle(archive: ZipArchive, name: str, log: ImportLog) -> object:
    record = archive.require(name)
    source = archive.open(record)
    machine = PickleMachine(source, log, persistent=storage_of)
    value = machine.run()
    archive.warnings += scan_followers(source, log, machine.position)
    if source.size <= _CHECKED_BYTES and zlib.crc32(source.read(0, source.size)) != record.crc:
        archive.warn_of_checksum(record)
    return value


def storage_of(identifier: object) -> object:
    """`("storage", type, key, location, numel)` and, from old files, a view on it."""
    if not isinstance(identifier, tuple) or not identifier or _plain(identifier[0]) != "storage":
        # Very old files refer to a module's class together with its source code.
        if isinstance(identifier, tuple) and len(identifier) > 1 and _plain(identifier[0]) == "module":
            return identifier[1]
        raise FormatError("the pickle refers to an external object that is not a storage")
    if len(identifier) < 5 or not isinstance(identifier[1], Global):
        raise FormatError("a storage reference in the pickle is not in torch's form")
    _, kind, key, _, numel = identifier[:5]
    view = identifier[5] if len(identifier) > 5 else None
    first = whole(view[1]) if isinstance(view, tuple) and len(view) == 3 else 0
    name = _plain(key)
    if kind.name not in UNTYPED_STORAGE_CLASSES and kind.name not in STORAGE_CLASSES:
        raise FormatError(f"{printable(kind.path)} is not a torch storage type")
    dtype = None if kind.name in UNTYPED_STORAGE_CLASSES else STORAGE_CLASSES[kind.name]
    return Storage(name if isinstance(name, str) else str(whole(name)), dtype, whole(numel), first)


def _plain(value: object) -> object:
    return value.content.decode("ascii", "replace") if isinstance(value, Data) else value


def storage_places(archive: ZipArchive, folder: str) -> Callable[[Storage], Place]:
    """The place of each storage's record; compressed ones have no offset."""
    known: dict[str, Place] = {}

    def locate(storage: Storage) -> Place:
        if storage.key not in known:
            record = archive.find(folder + storage.key)
            if record is None:
                raise FormatError(f"{archive.source.label}: the data of storage {printable(storage.key)} is missing")
            known[storage.key] = record_place(archive, record)
        return known[storage.key]

    return locate


def record_place(archive: ZipArchive, record: Record) -> Place:
    if record.method:
        packed = archive.source.position(archive.data_offset(record))
        deflated = None if packed is None else Deflated(packed, record.packed_size, record.size)
        return Place(archive.source.path, None, record.size, deflated)
    return Place(archive.source.path, archive.source.position(archive.plain_offset(record)), record.size)


def scan_other_pickles(archive: ZipArchive, log: ImportLog, *, read: set[str]) -> None:
    """Log the imports of all other pickles in the archive, valid or not, because loading may reach them."""
    done = {name.lower() for name in read}
    for lowered, record in list(archive.records.items()):
        if lowered in done:
            continue
        is_named = lowered.endswith(_PICKLE_SUFFIXES)
        if not is_named:
            # A loader can use any record as a pickle. Tensor data may start with any bytes, and source code with any
            # words.
            folder = lowered.removeprefix(archive.root.lower()).partition("/")[0]
            if folder in _OTHER_FOLDERS or record.method or not 2 < record.size <= _CHECKED_BYTES:
                continue
            head = archive.open(record).head(_HEAD_BYTES)
            is_old = head[:1] in b"(ci" and GLOBAL_LINE.search(head) is not None
            if head[:2] not in PROTOCOL_MARKS and not is_old:
                continue
        try:
            source = archive.open(record)
            if source.head(4) == ZIP_MARK:
                inner = ZipArchive(source)  # a torch file inside the archive
                for held in inner.records.values():
                    if held.name.lower().endswith(".pkl"):
                        _scan_pickle(inner.open(held), log)
            elif source.size:
                _scan_pickle(source, log)
        except FormatError as error:
            # Text or other bytes may start like a pickle; the imports up to the error are in the log.
            if is_named:
                archive.warnings.append(f"{printable(record.name)} could not be read as a pickle: {error}")


def _scan_pickle(source: ByteSource, log: ImportLog) -> None:
    machine = PickleMachine(source, log, persistent=any_storage)
    machine.run()
    scan_followers(source, log, machine.position)


_PROGRAM_BYTES = 2**26
_LISTED_EXTRA_FILES = 100
# The record of each value; the version of the container is in one of two records.
_RECORDS = {
    "archive_format": "archive_format",
    "archive_version": "archive_version",
    "file_version": "version",
    "data_version": ".data/version",
    "format_version": ".format_version",
    "byteorder": "byteorder",
    "storage_alignment": ".storage_alignment",
    "serialization_id": ".data/serialization_id",
}


def archive_metadata(archive: ZipArchive, program: str | None = None) -> dict[str, str]:
    """All values as text, by name; `program` is the record of an exported program."""
    found = {}
    for key, name in _RECORDS.items():
        content = archive.read_small(name)
        if content and (text := printable(content.decode("utf-8", "replace").strip())):
            found[key] = text
    folder = f"{archive.root}extra/"
    extra = [name.removeprefix(folder) for name in archive.names() if name.startswith(folder)]
    if extra:
        found["extra_files"] = ", ".join(map(printable, extra[:_LISTED_EXTRA_FILES]))
    if program is not None:
        found |= dict(_program_metadata(archive, program))
    return found


def _program_metadata(archive: ZipArchive, name: str) -> Iterator[tuple[str, str]]:
    record = archive.find(name)
    if record is None or record.size > _PROGRAM_BYTES:
        return
    try:
        document = parse_json(archive.read(record), f"{archive.source.label}:{printable(name)}")
    except FormatError as error:
        archive.warnings.append(str(error))
        return
    for key in ("torch_version", "dialect"):
        if isinstance(text := document.get(key), str):
            yield key, printable(text)
    for key, separator in (("schema_version", "."), ("opset_version", ", ")):
        if isinstance(versions := document.get(key), dict):
            # `8.20` for major and minor, `aten 10` for opsets.
            numbers = [(name, number) for name, number in versions.items() if isinstance(number, int)]
            named = (f"{name} {number}" if key == "opset_version" else str(number) for name, number in numbers)
            yield key, printable(separator.join(named))


_PICKLE, _STORAGES = "data.pkl", "data/"
_NAMED_TENSORS = 5  # of those that are missing from a truncated archive


def is_cut_archive(source: ByteSource) -> bool:
    """TorchScript archives and exported programs start with other records."""
    header = read_local(source, 0)
    if header is None or not header.is_plain or has_directory(source):
        return False
    return header.name.count("/") == 1 and header.name.endswith(f"/{_PICKLE}")


def open_cut_archive(source: ByteSource) -> Index:
    def locate(storage: Storage) -> Place:
        """A storage whose record is missing is placed after the end of the file, so reading it fails with its name."""
        start, size = records.get(_STORAGES + storage.key, (source.size, pickle.sizes.get(storage.key, 0)))
        return Place(source.path, source.position(start), size)

    with ImportLog() as log:
        pickle = _read_first_pickle(source, log)
        records = dict(_records(source, pickle))
        start, size = records.get("byteorder") or (0, 0)
        content = source.read(start, size) if 0 < size <= 2**10 and start + size <= source.size else b""
        is_big = content == b"big"
        index = index_of_pickle("torch", source.path, pickle.value, locate, log, big_endian=is_big)
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
        names = f" ({format_names([*map(printable, lost)], _NAMED_TENSORS)})" if lost else ""
        warning = (
            f"{source.label}: the end of the file is missing, and with it {len(lost):,} of "
            f"{len(index.entries):,} tensors{names}; is the download complete?"
        )
        return replace(index, warnings=(warning, *pickle.warnings))


@dataclass(frozen=True, slots=True)
class _Pickle:
    """`sizes` are those of the storages by key; `end` is the start of the next record, if there is one."""

    value: object
    root: str
    sizes: Mapping[str, int]
    end: int | None
    warnings: list[str]


def _read_first_pickle(source: ByteSource, log: ImportLog) -> _Pickle:
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
        message = f"{source.label}: the end of the file is missing, and its pickle cannot be read: {error}"
        raise FormatError(message) from error
    size = noted_size(source, header, machine.position) if header.size is None else header.size
    record = body.part(0, min(size or body.size, body.size), body.label)
    warnings = scan_followers(record, log, machine.position)
    end = None if size is None else record_end(source, header, size)
    return _Pickle(value, header.name.removesuffix(_PICKLE), sizes, end, warnings)


def _records(source: ByteSource, pickle: _Pickle) -> Iterator[tuple[str, tuple[int, int]]]:
    """The start and size of each record after the pickle, by name; the last may be truncated."""
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
