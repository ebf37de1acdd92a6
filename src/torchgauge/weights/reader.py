"""Bounded reading: each thread has one open file and one buffer; nothing is mapped, nothing is held."""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from torchgauge.errors import FormatError
from torchgauge.weights.plan import PIECE_BYTES, Piece, Unit

Bytes = NDArray[np.uint8]

_SCRATCH = threading.local()
_INFLATED_FROM = 1 << 20  # compressed bytes that are unpacked at a time


class Reader(Protocol):
    """Where the bytes of tensors come from: files, or the memory of a live model."""

    def read(self, file: str, offset: int, into: Bytes) -> None:
        """Fill `into`; a `FormatError` says why that cannot be."""
        ...

    def expect(self, unit: Unit) -> None:
        """The unit will be read soon."""
        ...

    def release(self, file: str, offset: int, nbytes: int) -> None:
        """The bytes will not be read again."""
        ...


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a file was when the scan began."""

    size: int
    mtime_ns: int


def stamp_files(files: Iterable[str]) -> dict[str, Stamp]:
    """A file that is not there has no stamp: reading its tensors then fails, those of others does not."""
    stamps = {}
    for file in files:
        try:
            found = os.stat(file)
        except OSError:
            continue
        stamps[file] = Stamp(found.st_size, found.st_mtime_ns)
    return stamps


class Files:
    """The files of a scan, for any number of threads. `slack_ns`: clocks of other machines' file systems are coarser.

    `drops` tells the system to forget what was read: a file larger than memory would push out everything else."""

    def __init__(self, stamps: Mapping[str, Stamp], *, drops: bool = False, slack_ns: int = 0) -> None:
        self.stamps, self.drops, self.slack_ns = dict(stamps), drops, slack_ns
        self._local = threading.local()
        self._opened: set[FileIO] = set()
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"stamps": self.stamps, "drops": self.drops, "slack_ns": self.slack_ns}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Files.__init__(self, **state)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            for stream in self._opened:
                stream.close()
            self._opened.clear()
        self._local = threading.local()

    def read(self, file: str, offset: int, into: Bytes) -> None:
        stamp = self.stamps.get(file)
        if stamp is not None and offset + len(into) > stamp.size:
            raise FormatError(
                f"its bytes end at {offset + len(into):,}, beyond the end of {file} at {stamp.size:,}: is it cut off?"
            )
        with _named_errors(file):
            stream = self._open(file)
            stream.seek(offset)
            _fill(stream, into, file)
            self._check(file, os.fstat(stream.fileno()))

    def expect(self, unit: Unit) -> None:
        first = unit.pieces[0]
        with _silent_errors():
            advise(self._open(first.file), first.offset, unit.span, "POSIX_FADV_WILLNEED")

    def release(self, file: str, offset: int, nbytes: int) -> None:
        if self.drops:
            with _silent_errors():
                advise(self._open(file), offset, nbytes, "POSIX_FADV_DONTNEED")

    def _open(self, file: str) -> FileIO:
        """One file for each thread: a folder may have more files than may be open."""
        known: tuple[str, FileIO] | None = getattr(self._local, "stream", None)
        if known is not None and known[0] == file:
            return known[1]
        stream = FileIO(file, "rb")
        with self._lock:
            self._opened.add(stream)
            if known is not None:
                self._opened.discard(known[1])
        if known is not None:
            known[1].close()
        self._local.stream = (file, stream)
        advise(stream, 0, 0, "POSIX_FADV_SEQUENTIAL")
        return stream

    def _check(self, file: str, found: os.stat_result) -> None:
        stamp = self.stamps.get(file)
        if stamp is None or found.st_size != stamp.size or abs(found.st_mtime_ns - stamp.mtime_ns) > self.slack_ns:
            raise FormatError(f"{file} was changed while it was read: run it again when nothing writes to it")


def _fill(stream: FileIO, into: Bytes, file: str) -> None:
    done = 0
    while done < len(into):
        count = stream.readinto(into[done:].data)
        if not count:
            raise FormatError(f"{file} ends at {stream.tell():,}, {len(into) - done:,} bytes early: is it cut off?")
        done += count


@contextmanager
def _named_errors(file: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FormatError(f"{file} could not be read: {error.strerror or error}") from error


@contextmanager
def _silent_errors() -> Iterator[None]:
    """Advice is no promise: the read itself tells what is wrong."""
    try:
        yield
    except OSError:
        return


def advise(stream: FileIO, offset: int, nbytes: int, name: str) -> None:
    advice, give = getattr(os, name, None), getattr(os, "posix_fadvise", None)
    if give is not None and advice is not None:
        give(stream.fileno(), offset, nbytes, advice)


def scratch(nbytes: int) -> Bytes:
    """The thread's own buffer; its content is good until the thread asks for the next."""
    buffer: Bytes | None = getattr(_SCRATCH, "buffer", None)
    if buffer is None or len(buffer) < nbytes:
        buffer = np.empty(max(nbytes, min(4 * nbytes, PIECE_BYTES)), dtype=np.uint8)
        _SCRATCH.buffer = buffer
    return buffer[:nbytes]


def piece_parts(reader: Reader, piece: Piece) -> Iterator[Bytes]:
    """The values of a piece as bytes, each part good until the next; one part unless it is compressed."""
    if piece.deflated is not None:
        yield from inflated_parts(reader, piece)
        return
    span = scratch(piece.span)
    reader.read(piece.file, piece.offset, span)
    if piece.gather is None:
        yield span
    else:
        item, shape, stride = piece.gather.item, piece.gather.shape, piece.gather.stride
        cells = np.lib.stride_tricks.as_strided(span, (*shape, item), (*(step * item for step in stride), 1))
        yield np.ascontiguousarray(cells).reshape(-1)


def unit_parts(reader: Reader, unit: Unit) -> Iterator[tuple[Piece, Bytes]]:
    """Small neighbours, read together."""
    span = scratch(unit.span)
    reader.read(unit.pieces[0].file, unit.offset, span)
    for piece in unit.pieces:
        start = piece.offset - unit.offset
        yield piece, span[start : start + piece.nbytes]


def inflated_parts(reader: Reader, piece: Piece) -> Iterator[Bytes]:
    """A tensor in a compressed record, in whole elements of at most `PIECE_BYTES`."""
    assert piece.deflated is not None
    skip, left = piece.deflated.start, piece.nbytes
    held = bytearray()
    for part in _inflate(reader, piece):
        fresh = part[skip:] if skip else part
        skip = max(skip - len(part), 0)
        held += fresh[: left - len(held)]
        size = min(PIECE_BYTES, left)
        while left and len(held) >= size:
            yield np.frombuffer(bytes(held[:size]), dtype=np.uint8)
            del held[:size]
            left -= size
            size = min(PIECE_BYTES, left)
        if not left:
            return
    raise FormatError(f"its compressed record ends {left - len(held):,} bytes early: is it cut off?")


def _inflate(reader: Reader, piece: Piece) -> Iterator[bytes]:
    assert piece.deflated is not None
    unpacker, packed = zlib.decompressobj(-15), piece.deflated.packed
    buffer = scratch(min(_INFLATED_FROM, packed))
    try:
        for at in range(0, packed, _INFLATED_FROM):
            count = min(_INFLATED_FROM, packed - at)
            reader.read(piece.file, piece.deflated.offset + at, buffer[:count])
            rest: bytes | memoryview = buffer[:count].data
            while len(rest):
                yield unpacker.decompress(rest, PIECE_BYTES)
                rest = unpacker.unconsumed_tail
    except zlib.error as error:
        raise FormatError(f"its compressed record is damaged: {error}") from error
    yield unpacker.flush()
