"""Reads the bytes of a pickle in order, through a buffer, never beyond the end of its source."""

from __future__ import annotations

from torchgauge.checkpoint import limits
from torchgauge.checkpoint.byte_source import ByteSource
from torchgauge.errors import FormatError

_BUFFER_BYTES = 2**18


class PickleStream:
    """`buffer` holds the bytes around the current one, which is at `at` in it."""

    def __init__(self, source: ByteSource, start: int = 0) -> None:
        self.source = source
        self._base = start
        self.buffer = b""
        self.at = 0

    @property
    def position(self) -> int:
        return self._base + self.at

    def byte(self) -> int:
        at = self.at
        if at >= len(self.buffer):
            self._fill(1)
            at = 0
        self.at = at + 1
        return self.buffer[at]

    def read(self, count: int) -> bytes:
        at = self.at
        if at + count > len(self.buffer):
            self._fill(count)
            at = 0
        self.at = at + count
        return self.buffer[at : at + count]

    def unsigned(self, width: int) -> int:
        return int.from_bytes(self.read(width), "little")

    def skip(self, count: int) -> None:
        self._require(count)
        self._base, self.buffer, self.at = self.position + count, b"", 0

    def line(self) -> bytes:
        """Up to the next newline, which is read but not returned."""
        end = self.buffer.find(b"\n", self.at)
        if end < 0:
            self._fill(min(limits.PICKLE_LINE_BYTES, self.source.size - self.position))
            end = self.buffer.find(b"\n")
        if end < 0:
            raise FormatError(f"{self.source.label}: a line in the pickle at byte {self.position} does not end")
        data = self.buffer[self.at : end]
        self.at = end + 1
        return data

    def _require(self, count: int) -> None:
        if self.position + count > self.source.size:
            raise FormatError(f"{self.source.label}: the pickle is cut off at byte {self.source.size}")

    def _fill(self, count: int) -> None:
        """Make the buffer begin here and hold at least `count` bytes."""
        self._require(count)
        start = self.position
        wanted = min(max(count, _BUFFER_BYTES), self.source.size - start)
        self.buffer = self.source.read(start, wanted)
        self._base, self.at = start, 0
