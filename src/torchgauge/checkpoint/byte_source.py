"""Bounded reading of a file or a part of it, such as a record of an archive; JSON; names that are safe to print."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from torchgauge.checkpoint.limits import JSON_BYTES
from torchgauge.errors import FormatError


@dataclass(frozen=True, slots=True)
class ByteSource:
    """`size` bytes from `start` of an open file; `label` names the file, and the record within it, for messages.

    With `is_mapped`, offsets are positions in the file on disk, not in data that was inflated in memory.
    """

    stream: BinaryIO
    path: str
    label: str
    start: int
    size: int
    is_mapped: bool = True

    def read(self, offset: int, count: int) -> bytes:
        """Exactly `count` bytes; raises `FormatError` if the file is truncated."""
        if offset < 0 or count < 0 or offset + count > self.size:
            raise FormatError(
                f"{self.label}: {count} bytes at {offset} are beyond its end at {self.size}: is it cut off?"
            )
        self.stream.seek(self.start + offset)
        data = self.stream.read(count)
        if len(data) != count:
            raise FormatError(f"{self.label}: the file ends early; it changed or could not be read")
        return data

    def head(self, count: int) -> bytes:
        return self.read(0, min(count, self.size))

    def part(self, offset: int, size: int, label: str) -> ByteSource:
        if offset < 0 or size < 0 or offset + size > self.size:
            raise FormatError(f"{label}: {size} bytes at {offset} are beyond the end of {self.label} at {self.size}")
        return ByteSource(self.stream, self.path, label, self.start + offset, size, self.is_mapped)

    def position(self, offset: int) -> int | None:
        """The position of `offset` in the file on disk."""
        return self.start + offset if self.is_mapped else None


def in_memory(data: bytes, path: str, label: str) -> ByteSource:
    return ByteSource(io.BytesIO(data), path, label, 0, len(data), is_mapped=False)


@contextmanager
def opened(path: str) -> Iterator[ByteSource]:
    if os.path.exists(path) and not os.path.isfile(path):
        raise FormatError(f"{path} is not a regular file: pipes and devices cannot be opened")
    try:
        with open(path, "rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            yield ByteSource(stream, path, os.path.basename(path), 0, size)
    except OSError as error:
        raise FormatError(f"{path} could not be read: {error.strerror or error}") from error


def is_file_name(text: str) -> bool:
    """Whether a name from a file is a plain file name, not a path that leaves the folder."""
    return os.path.basename(text) == text and text not in ("", ".", "..") and "\\" not in text and "\0" not in text


def parse_json(content: bytes, label: str) -> dict[str, object]:
    """The JSON object in `content`; a duplicate key is an error."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        members = dict(pairs)
        if len(members) != len(pairs):
            raise ValueError("duplicate key")
        return members

    try:
        value = json.loads(content.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{label}: invalid JSON: {error}") from error
    if not isinstance(value, dict):
        raise FormatError(f"{label}: expected a JSON object")
    return value


def read_json(path: str) -> dict[str, object]:
    """The JSON object in a file."""
    with opened(path) as source:
        if source.size > JSON_BYTES:
            raise FormatError(f"{source.label}: {source.size:,} bytes are too many for a JSON file")
        return parse_json(source.read(0, source.size), source.label)


_MAX_PRINTED_CHARACTERS = 300


def printable(text: str) -> str:
    """Text that can be encoded as UTF-8, shortened to fit a message."""
    text = text if len(text) <= _MAX_PRINTED_CHARACTERS else text[:_MAX_PRINTED_CHARACTERS] + "…"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
