"""The headers before the records of a zip archive, and the notes after them: all there is without a directory."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from torchgauge.checkpoint.byte_source import ByteSource
from torchgauge.checkpoint.zip_directory import large_sizes
from torchgauge.errors import FormatError

LOCAL = struct.Struct("<4s5H3L2H")
MARK, _NOTE = b"PK\x03\x04", b"PK\x07\x08"
_NOTED, _ENCRYPTED, _UTF8 = 0x8, 0x1, 0x800
_NOTE_BYTES = 24
_SMALL_BYTES = 2**16


@dataclass(frozen=True, slots=True)
class LocalHeader:
    """`start` is where the record's bytes begin; `size` is None where only the note after them tells it."""

    name: str
    start: int
    size: int | None
    is_plain: bool


def read_local(source: ByteSource, at: int) -> LocalHeader | None:
    """None where there is no header at `at`, or not a whole one."""
    if not 0 <= at <= source.size - LOCAL.size:
        return None
    mark, _, flags, method, _, _, _, packed, size, name_size, extra_size = LOCAL.unpack(source.read(at, LOCAL.size))
    start = at + LOCAL.size + name_size + extra_size
    if mark != MARK or start > source.size:
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
    """Where the next record begins; None where the file ends before, or where the note does not fit the size."""
    end = header.start + size
    if header.size is not None:
        return header.start + header.size
    if end >= source.size:
        return None
    note = source.read(end, min(_NOTE_BYTES, source.size - end))
    widths = [width for width in (4, 8) if _is_note(note, size, width)]
    ends = [end + 8 + 2 * width for width in widths]
    # A note of nothing may be of either form: that of which a header follows.
    return next((at for at in ends if len(ends) == 1 or read_local(source, at) is not None), None)


def _is_note(note: bytes, size: int, width: int) -> bool:
    """The mark, a checksum, and the size twice, in 32 bits or in 64."""
    sizes = size.to_bytes(8, "little")
    return note[:4] == _NOTE and not any(sizes[width:]) and note[8 : 8 + 2 * width] == 2 * sizes[:width]


def noted_size(source: ByteSource, header: LocalHeader, least: int = 0) -> int | None:
    """The size of a record from the note after it; None where there is none soon after its first `least` bytes."""
    start = header.start + least
    window = source.read(start, min(_SMALL_BYTES, source.size - start))
    at = window.find(_NOTE)
    while at >= 0:
        if any(_is_note(window[at : at + _NOTE_BYTES], least + at, width) for width in (4, 8)):
            return least + at
        at = window.find(_NOTE, at + 1)
    return None
