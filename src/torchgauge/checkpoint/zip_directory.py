"""Finds and reads the central directory of a zip archive, zip64 included."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from torchgauge.checkpoint.byte_source import ByteSource
from torchgauge.errors import FormatError

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
    """`shift` is how many bytes stand before the archive: all its offsets are to be moved by it."""

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
    shift = _shift(source, end)
    if end.count * _ENTRY.size > end.size:
        raise FormatError(f"{source.label}: the zip directory is damaged")
    data = source.read(end.offset + shift, end.size)
    records, at = [], 0
    for _ in range(end.count):
        record, at = _parse(source, data, at)
        records.append(record)
    return Directory(records, shift)


def _shift(source: ByteSource, end: _End) -> int:
    """A directory at the place it declares is the one PyTorch reads, whatever stands elsewhere."""
    shift = end.position - end.size - end.offset
    if shift < 0:
        raise FormatError(f"{source.label}: the zip directory is said to lie beyond the end of the file")
    if source.read(end.offset, 4) == b"PK\x01\x02":
        return 0
    if shift and source.head(4) == b"PK\x03\x04":
        # The directory of an archive within the archive, whose own end is missing.
        raise FormatError(f"{source.label}: a zip archive without its own directory; is it cut off?")
    return shift


def _find_end(source: ByteSource) -> _End | None:
    size = min(source.size, _COMMENT_BYTES + _END.size)
    tail = source.read(source.size - size, size)
    at = tail.rfind(b"PK\x05\x06", 0, len(tail) - _END.size + 4) if size >= _END.size else -1
    if at < 0:
        return None
    _, _, _, _, count, length, offset, _ = _END.unpack_from(tail, at)
    position = source.size - size + at
    return _find_end64(source, position) or _End(position, count, length, offset)


def _find_end64(source: ByteSource, position: int) -> _End | None:
    """The large form, which stands before a locator, which stands before the small form."""
    if position < _LOCATOR64.size + _END64.size:
        return None
    locator = _LOCATOR64.unpack(source.read(position - _LOCATOR64.size, _LOCATOR64.size))
    if locator[0] != b"PK\x06\x07":
        return None
    # Where the locator says, as PyTorch looks; right before the locator where bytes were put before the archive.
    for at in (locator[2], position - _LOCATOR64.size - _END64.size):
        if at + _END64.size <= source.size and source.read(at, 4) == b"PK\x06\x06":
            fields = _END64.unpack(source.read(at, _END64.size))
            return _End(at, fields[7], fields[8], fields[9])
    raise FormatError(f"{source.label}: the zip64 directory is not where it is said to be")


def _parse(source: ByteSource, data: bytes, at: int) -> tuple[Record, int]:
    if at + _ENTRY.size > len(data) or data[at : at + 4] != b"PK\x01\x02":
        raise FormatError(f"{source.label}: the zip directory is damaged")
    fields = _ENTRY.unpack_from(data, at)
    flags, method, crc, packed, size = fields[3], fields[4], fields[7], fields[8], fields[9]
    name_end = at + _ENTRY.size + fields[10]
    extra_end = name_end + fields[11]
    end = extra_end + fields[12]
    if end > len(data):
        raise FormatError(f"{source.label}: the zip directory is damaged")
    name = data[at + _ENTRY.size : name_end].decode("utf-8" if flags & 0x800 else "cp437", "backslashreplace")
    size, packed, offset = large_sizes(source, data[name_end:extra_end], (size, packed, fields[16]))
    return Record(name, flags, method, crc, packed, size, offset), end


def large_sizes(source: ByteSource, extra: bytes, sizes: tuple[int, int, int]) -> tuple[int, int, int]:
    """Those that do not fit in 32 bits stand in an extra field, in this order."""
    if _MAX32 not in sizes:
        return sizes
    field = _zip64_field(extra)
    found = []
    for size in sizes:
        if size == _MAX32:
            if len(field) < 8:
                raise FormatError(f"{source.label}: a record's zip64 sizes are missing")
            size, field = int.from_bytes(field[:8], "little"), field[8:]
        found.append(size)
    return found[0], found[1], found[2]


def _zip64_field(extra: bytes) -> bytes:
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            return extra[at + 4 : at + 4 + length]
        at += 4 + length
    return b""
