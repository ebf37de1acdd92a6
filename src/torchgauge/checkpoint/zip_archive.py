"""The records of a zip archive, from its central directory, as PyTorch's own reader sees them.

PyTorch's reader (miniz) ignores the checksums and the names in the local headers (older ones the flag bits too), and
finds names without regard to case. Python's `zipfile` refuses such archives, so a scanner that trusts it can be led
astray; here they are read as PyTorch would, with a warning. Nothing is ever extracted: names are only labels.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property

from torchgauge.checkpoint import limits
from torchgauge.checkpoint.byte_source import ByteSource, in_memory
from torchgauge.checkpoint.import_log import printable
from torchgauge.checkpoint.zip_directory import Record, read_directory
from torchgauge.checkpoint.zip_local import LOCAL, MARK
from torchgauge.errors import FormatError

_STORED, _DEFLATED = 0, 8
_ENCRYPTED = 0x1
_WINDOW_BYTES = 2**16
_SMALL_BYTES = 2**13


class ZipArchive:
    def __init__(self, source: ByteSource) -> None:
        self.source = source
        directory = read_directory(source)
        self.shift = directory.shift
        self.records: dict[str, Record] = {}
        self.warnings: list[str] = []
        self._window = (0, b"")
        for record in directory.records:
            # PyTorch compares names without case, so two that differ only in case are one to it.
            if self.records.setdefault(record.name.lower(), record) is not record:
                raise FormatError(f"{source.label}: two records are named {printable(record.name)}")
        _refuse_overlaps(source, directory.records)
        self._warn_of_oddities(directory.records)

    @cached_property
    def root(self) -> str:
        """The folder of the first record, which PyTorch takes for the archive's name; ends with a slash."""
        first = next(iter(self.records.values()), None)
        return "" if first is None or "/" not in first.name else first.name.partition("/")[0] + "/"

    def find(self, name: str) -> Record | None:
        return self.records.get(name.lower())

    def names(self) -> list[str]:
        return [record.name for record in self.records.values()]

    def data_offset(self, record: Record) -> int:
        """Where the record's bytes begin in the source: the local header may be longer than the central one says."""
        at = record.header_offset + self.shift
        header = LOCAL.unpack(self._local_header(at, record.packed_size))
        if header[0] != MARK:
            raise FormatError(f"{self.source.label}: the record {printable(record.name)} has no header at byte {at}")
        return at + LOCAL.size + header[9] + header[10]

    def _local_header(self, at: int, packed_size: int) -> bytes:
        """Small records follow one another closely: one read serves the headers of many."""
        start, window = self._window
        if not start <= at <= start + len(window) - LOCAL.size:
            wanted = _WINDOW_BYTES if packed_size < _SMALL_BYTES else LOCAL.size
            start, window = at, self.source.read(at, max(LOCAL.size, min(wanted, self.source.size - at)))
            self._window = start, window
        return window[at - start : at - start + LOCAL.size]

    def plain_offset(self, record: Record) -> int:
        """Where the bytes of an uncompressed record begin in the source; all of them are there."""
        offset = self.data_offset(record)
        if record.packed_size != record.size or offset + record.size > self.source.size:
            self.open(record)  # says what is wrong
        return offset

    def open(self, record: Record) -> ByteSource:
        """The record as a file of its own; unpacked in memory where it is compressed."""
        label = f"{self.source.label}:{printable(record.name)}"
        offset = self.data_offset(record)
        if record.method == _STORED:
            if record.packed_size != record.size:
                raise FormatError(f"{label}: an uncompressed record with two sizes")
            return self.source.part(offset, record.size, label)
        if record.method != _DEFLATED:
            raise FormatError(f"{label}: compression method {record.method} is not one that PyTorch reads")
        return in_memory(self._inflate(record, offset, label), self.source.path, label)

    def read(self, record: Record) -> bytes:
        part = self.open(record)
        content = part.read(0, part.size)
        if zlib.crc32(content) != record.crc:
            self.warn_of_checksum(record)
        return content

    def warn_of_checksum(self, record: Record) -> None:
        self.warnings.append(
            f"the checksum of {printable(record.name)} does not fit: it is damaged, was edited, or was written without"
        )

    def _inflate(self, record: Record, offset: int, label: str) -> bytes:
        most = max(limits.INFLATED_BYTES, limits.INFLATED_FILES * self.source.size)
        if record.size > min(most, limits.INFLATION_RATIO * max(record.packed_size, 1)):
            raise FormatError(f"{label}: unpacks to {record.size} bytes from {record.packed_size}: a zip bomb?")
        packed = self.source.read(offset, record.packed_size)
        unpacker = zlib.decompressobj(-15)
        try:
            content = unpacker.decompress(packed, record.size + 1)
        except zlib.error as error:
            raise FormatError(f"{label}: the compressed data is damaged: {error}") from error
        if len(content) != record.size:
            raise FormatError(f"{label}: unpacks to another size than the {record.size} bytes it declares")
        return content

    def _warn_of_oddities(self, records: list[Record]) -> None:
        if self.shift:
            self.warnings.append(f"{self.shift} bytes stand before the archive")
        encrypted = [record.name for record in records if record.flags & _ENCRYPTED]
        if encrypted:
            self.warnings.append(
                f"{printable(encrypted[0])} is flagged as encrypted, which some versions of PyTorch ignore"
            )
        outside = [name for name in self.names() if name.startswith(("/", "\\")) or ".." in name.split("/")]
        if outside:
            self.warnings.append(f"a record is named {printable(outside[0])}, outside of the archive's folder")


def _refuse_overlaps(source: ByteSource, records: list[Record]) -> None:
    """Records that share bytes are how small archives unpack to huge ones, and no writer makes them."""
    end = 0
    for record in sorted(records, key=lambda record: record.header_offset):
        if record.header_offset < end:
            raise FormatError(f"{source.label}: the record {printable(record.name)} overlaps another one")
        end = record.header_offset + LOCAL.size + len(record.name) + record.packed_size


def read_record(archive: ZipArchive, name: str) -> bytes | None:
    """The content of a small record, None where there is none of that name."""
    record = archive.find(name)
    return None if record is None or record.size > 2**16 else archive.read(record)


@dataclass(frozen=True, slots=True)
class ArchiveFacts:
    """The small records that describe a PyTorch archive."""

    is_big_endian: bool
    version: str | None
    format_version: str | None


def archive_facts(archive: ZipArchive) -> ArchiveFacts:
    order = read_record(archive, archive.root + "byteorder")
    return ArchiveFacts(order == b"big", _text(archive, "version"), _text(archive, ".format_version"))


def _text(archive: ZipArchive, name: str) -> str | None:
    content = read_record(archive, archive.root + name)
    return None if content is None else printable(content.decode("utf-8", "replace").strip())
