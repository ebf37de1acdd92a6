"""The records of a zip archive, zip64 included, as PyTorch's reader sees them.

PyTorch's reader (miniz) ignores the checksums and the names in local headers (older versions also the flag bits), and
finds names case-insensitively. Python's `zipfile` rejects such archives, so scanners that rely on it can be misled;
here they are read as PyTorch would, with a warning. Nothing is extracted: names are only labels."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from functools import cached_property

from torchgauge.checkpoint import limits
from torchgauge.checkpoint.byte_source import ByteSource, in_memory, printable
from torchgauge.errors import FormatError

# The first bytes of a record, and so of most archives.
ZIP_MARK = b"PK\x03\x04"
_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR64 = struct.Struct("<4sLQL")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_COMMENT_BYTES = 2**16
_MAX32 = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Record:
    name: str
    flags: int
    method: int
    crc: int
    packed_size: int
    size: int
    header_offset: int


@dataclass(frozen=True, slots=True)
class Directory:
    """`shift` is the number of bytes before the archive, by which all its offsets move."""

    records: list[Record]
    shift: int


@dataclass(frozen=True, slots=True)
class _End:
    position: int
    count: int
    size: int
    offset: int


def has_directory(source: ByteSource) -> bool:
    return _find_end(source) is not None


def read_directory(source: ByteSource) -> Directory:
    end = _find_end(source)
    if end is None:
        raise FormatError(f"{source.label}: a zip archive without its directory; is it cut off?")
    shift = end.position - end.size - end.offset
    if shift < 0:
        raise FormatError(f"{source.label}: the declared zip directory is beyond the end of the file")
    if source.read(end.offset, 4) == b"PK\x01\x02":
        shift = 0  # PyTorch reads the directory at the declared offset, whatever is elsewhere
    elif shift and source.head(4) == ZIP_MARK:
        # The directory of an archive within the archive, whose own end is missing.
        raise FormatError(f"{source.label}: a zip archive without its own directory; is it cut off?")
    if end.count * _ENTRY.size > end.size:
        raise FormatError(f"{source.label}: the zip directory is corrupt")
    data = source.read(end.offset + shift, end.size)
    records, at = [], 0
    for _ in range(end.count):
        if at + _ENTRY.size > len(data) or data[at : at + 4] != b"PK\x01\x02":
            raise FormatError(f"{source.label}: the zip directory is corrupt")
        fields = _ENTRY.unpack_from(data, at)
        flags, method, crc, packed, size = fields[3], fields[4], fields[7], fields[8], fields[9]
        name_end = at + _ENTRY.size + fields[10]
        extra_end = name_end + fields[11]
        next_entry = extra_end + fields[12]
        if next_entry > len(data):
            raise FormatError(f"{source.label}: the zip directory is corrupt")
        name = data[at + _ENTRY.size : name_end].decode("utf-8" if flags & 0x800 else "cp437", "backslashreplace")
        size, packed, offset = large_sizes(source, data[name_end:extra_end], (size, packed, fields[16]))
        records.append(Record(name, flags, method, crc, packed, size, offset))
        at = next_entry
    return Directory(records, shift)


def _find_end(source: ByteSource) -> _End | None:
    size = min(source.size, _COMMENT_BYTES + _END.size)
    tail = source.read(source.size - size, size)
    at = tail.rfind(b"PK\x05\x06", 0, len(tail) - _END.size + 4) if size >= _END.size else -1
    if at < 0:
        return None
    _, _, _, _, count, length, offset, _ = _END.unpack_from(tail, at)
    position = source.size - size + at
    if position >= _LOCATOR64.size + _END64.size:
        # The zip64 end record precedes a locator, which precedes the end record.
        locator = _LOCATOR64.unpack(source.read(position - _LOCATOR64.size, _LOCATOR64.size))
        if locator[0] == b"PK\x06\x07":
            # At the locator's offset, as PyTorch reads it, or right before the locator if bytes precede the archive.
            for place in (locator[2], position - _LOCATOR64.size - _END64.size):
                if place + _END64.size <= source.size and source.read(place, 4) == b"PK\x06\x06":
                    fields = _END64.unpack(source.read(place, _END64.size))
                    return _End(place, fields[7], fields[8], fields[9])
            raise FormatError(f"{source.label}: the zip64 directory is not at its declared offset")
    return _End(position, count, length, offset)


def large_sizes(source: ByteSource, extra: bytes, sizes: tuple[int, int, int]) -> tuple[int, int, int]:
    """Sizes that do not fit in 32 bits are in an extra field, in this order."""
    if _MAX32 not in sizes:
        return sizes
    field, at = b"", 0
    while at + 4 <= len(extra) and not field:
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            field = extra[at + 4 : at + 4 + length]
            break
        at += 4 + length
    found = []
    for size in sizes:
        if size == _MAX32:
            if len(field) < 8:
                raise FormatError(f"{source.label}: a record's zip64 sizes are missing")
            size, field = int.from_bytes(field[:8], "little"), field[8:]
        found.append(size)
    return found[0], found[1], found[2]


LOCAL = struct.Struct("<4s5H3L2H")
_NOTE = b"PK\x07\x08"
_NOTED, _ENCRYPTED, _UTF8 = 0x8, 0x1, 0x800
_NOTE_BYTES = 24
_DESCRIPTOR_WINDOW_BYTES = 2**16


@dataclass(frozen=True, slots=True)
class LocalHeader:
    """`start` is the offset of the record's bytes; `size` is None if only the data descriptor after them has it."""

    name: str
    start: int
    size: int | None
    is_plain: bool


def read_local(source: ByteSource, at: int) -> LocalHeader | None:
    """None if there is no complete header at `at`."""
    if not 0 <= at <= source.size - LOCAL.size:
        return None
    mark, _, flags, method, _, _, _, packed, size, name_size, extra_size = LOCAL.unpack(source.read(at, LOCAL.size))
    start = at + LOCAL.size + name_size + extra_size
    if mark != ZIP_MARK or start > source.size:
        return None
    text = source.read(at + LOCAL.size, name_size + extra_size)
    name = text[:name_size].decode("utf-8" if flags & _UTF8 else "cp437", "backslashreplace")
    try:
        size, packed, _ = large_sizes(source, text[name_size:], (size, packed, 0))
    except FormatError:
        return None
    is_plain = not method and not flags & _ENCRYPTED and packed == size
    return LocalHeader(name, start, None if flags & _NOTED else size, is_plain)


def record_end(source: ByteSource, header: LocalHeader, size: int) -> int | None:
    """The offset of the next record; None if the file ends before, or if the data descriptor does not match the
    size."""
    end = header.start + size
    if header.size is not None:
        return header.start + header.size
    if end >= source.size:
        return None
    note = source.read(end, min(_NOTE_BYTES, source.size - end))
    widths = [width for width in (4, 8) if _is_note(note, size, width)]
    ends = [end + 8 + 2 * width for width in widths]
    # The descriptor of an empty record fits both widths: take the one that a header follows.
    return next((at for at in ends if len(ends) == 1 or read_local(source, at) is not None), None)


def _is_note(note: bytes, size: int, width: int) -> bool:
    """A signature, a checksum, and the size twice, in 32 or 64 bits."""
    sizes = size.to_bytes(8, "little")
    return note[:4] == _NOTE and not any(sizes[width:]) and note[8 : 8 + 2 * width] == 2 * sizes[:width]


def noted_size(source: ByteSource, header: LocalHeader, least: int = 0) -> int | None:
    """The size of a record from the data descriptor after it; None if none follows soon after its first `least`
    bytes."""
    start = header.start + least
    window = source.read(start, min(_DESCRIPTOR_WINDOW_BYTES, source.size - start))
    at = window.find(_NOTE)
    while at >= 0:
        if any(_is_note(window[at : at + _NOTE_BYTES], least + at, width) for width in (4, 8)):
            return least + at
        at = window.find(_NOTE, at + 1)
    return None


_STORED, _DEFLATED = 0, 8
_WINDOW_BYTES = 2**16
_SMALL_BYTES = 2**13
_SMALL_RECORD_BYTES = 2**16


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
        # Records that share bytes are a technique of zip bombs that no writer uses.
        end = 0
        for record in sorted(directory.records, key=lambda record: record.header_offset):
            if record.header_offset < end:
                raise FormatError(f"{source.label}: the record {printable(record.name)} overlaps another one")
            end = record.header_offset + LOCAL.size + len(record.name) + record.packed_size
        if self.shift:
            self.warnings.append(f"{self.shift} bytes precede the archive")
        encrypted = [record.name for record in directory.records if record.flags & _ENCRYPTED]
        if encrypted:
            self.warnings.append(
                f"{printable(encrypted[0])} is flagged as encrypted, which some versions of PyTorch ignore"
            )
        outside = [name for name in self.names() if name.startswith(("/", "\\")) or ".." in name.split("/")]
        if outside:
            self.warnings.append(f"a record is named {printable(outside[0])}, outside of the archive's folder")

    @cached_property
    def root(self) -> str:
        """The folder of the first record, which PyTorch uses as the archive's name; ends with a slash."""
        first = next(iter(self.records.values()), None)
        return "" if first is None or "/" not in first.name else first.name.partition("/")[0] + "/"

    def find(self, name: str) -> Record | None:
        return self.records.get(name.lower())

    def require(self, name: str) -> Record:
        record = self.find(name)
        if record is None:
            raise FormatError(f"{self.source.label}: the record {printable(name)} is missing")
        return record

    def names(self) -> list[str]:
        return [record.name for record in self.records.values()]

    def data_offset(self, record: Record) -> int:
        """The offset of the record's bytes in the source: the local header may be longer than the central one."""
        at = record.header_offset + self.shift
        # Small records are close together: one read serves the headers of many.
        start, window = self._window
        if not start <= at <= start + len(window) - LOCAL.size:
            wanted = _WINDOW_BYTES if record.packed_size < _SMALL_BYTES else LOCAL.size
            start, window = at, self.source.read(at, max(LOCAL.size, min(wanted, self.source.size - at)))
            self._window = start, window
        header = LOCAL.unpack(window[at - start : at - start + LOCAL.size])
        if header[0] != ZIP_MARK:
            raise FormatError(f"{self.source.label}: the record {printable(record.name)} has no header at byte {at}")
        return at + LOCAL.size + header[9] + header[10]

    def plain_offset(self, record: Record) -> int:
        """The offset of the bytes of an uncompressed record in the source; checks that all are there."""
        offset = self.data_offset(record)
        if record.packed_size != record.size or offset + record.size > self.source.size:
            self.open(record)  # raises a precise error
        return offset

    def open(self, record: Record) -> ByteSource:
        """The record as a byte source; inflated in memory if it is compressed."""
        label = f"{self.source.label}:{printable(record.name)}"
        offset = self.data_offset(record)
        if record.method == _STORED:
            if record.packed_size != record.size:
                raise FormatError(f"{label}: an uncompressed record with two sizes")
            return self.source.part(offset, record.size, label)
        if record.method != _DEFLATED:
            raise FormatError(f"{label}: compression method {record.method} is not one that PyTorch reads")
        most = max(limits.INFLATED_BYTES, limits.INFLATED_FILES * self.source.size)
        if record.size > min(most, limits.INFLATION_RATIO * max(record.packed_size, 1)):
            raise FormatError(f"{label}: unpacks to {record.size} bytes from {record.packed_size}: a zip bomb?")
        packed = self.source.read(offset, record.packed_size)
        unpacker = zlib.decompressobj(-15)
        try:
            content = unpacker.decompress(packed, record.size + 1)
        except zlib.error as error:
            raise FormatError(f"{label}: the compressed data is corrupt: {error}") from error
        if len(content) != record.size:
            raise FormatError(f"{label}: unpacks to another size than the {record.size} bytes it declares")
        return in_memory(content, self.source.path, label)

    def read(self, record: Record) -> bytes:
        part = self.open(record)
        content = part.read(0, part.size)
        if zlib.crc32(content) != record.crc:
            self.warn_of_checksum(record)
        return content

    def read_small(self, name: str) -> bytes | None:
        """The content of a small record in the root folder; None if there is none of that name."""
        record = self.find(self.root + name)
        return None if record is None or record.size > _SMALL_RECORD_BYTES else self.read(record)

    @cached_property
    def is_big_endian(self) -> bool:
        return self.read_small("byteorder") == b"big"

    def warn_of_checksum(self, record: Record) -> None:
        self.warnings.append(
            f"the checksum of {printable(record.name)} does not match: it is corrupt, edited, or written without one"
        )
