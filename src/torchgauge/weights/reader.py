"""Bounded reading: one open file and one buffer per thread, no memory mapping. The parameters and buffers of a live
model are read like files, one per storage."""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from io import FileIO
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from torchgauge.checkpoint import Entry, Index, PickledModule, Role
from torchgauge.checkpoint.dtypes import item_bytes
from torchgauge.checkpoint.sharing import View, find_owners
from torchgauge.checkpoint.tensor_names import classify, find_model_prefix
from torchgauge.errors import FormatError
from torchgauge.facts import TensorSpec
from torchgauge.facts.tensor import is_contiguous
from torchgauge.nested import find_named
from torchgauge.source import attribute_of
from torchgauge.weights.plan import PIECE_BYTES, Batch, Piece

if TYPE_CHECKING:
    import torch
    from torch import nn


Bytes = NDArray[np.uint8]

_SCRATCH = threading.local()
# Compressed bytes that are inflated at a time.
_INFLATE_BYTES = 1 << 20


class Reader(Protocol):
    """The source of tensor bytes: files, or the memory of a live model."""

    def read(self, file: str, offset: int, into: Bytes) -> None:
        """Fill `into`; raises `FormatError` if that is not possible."""
        ...

    def prefetch(self, batch: Batch) -> None:
        """The batch will be read soon."""
        ...

    def release(self, file: str, offset: int, nbytes: int) -> None:
        """The bytes will not be read again."""
        ...


@dataclass(frozen=True, slots=True)
class FileStamp:
    """Size and modification time of a file at the start of the scan."""

    size: int
    mtime_ns: int


def stamp_files(files: Iterable[str]) -> dict[str, FileStamp]:
    """Missing files have no stamp: reading their tensors fails later, other tensors are not affected."""
    stamps = {}
    for file in files:
        with suppress(OSError):
            stat = os.stat(file)
            stamps[file] = FileStamp(stat.st_size, stat.st_mtime_ns)
    return stamps


class FileReader:
    """Reads files from any number of threads, and checks that they do not change.

    `drop_cache` releases pages after reading: a file larger than memory would evict everything else. `slack_ns` allows
    for network file systems with coarser timestamps.
    """

    def __init__(self, stamps: Mapping[str, FileStamp], *, drop_cache: bool = False, slack_ns: int = 0) -> None:
        self.stamps, self.drop_cache, self.slack_ns = dict(stamps), drop_cache, slack_ns
        self._local = threading.local()
        self._open_files: set[FileIO] = set()
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"stamps": self.stamps, "drop_cache": self.drop_cache, "slack_ns": self.slack_ns}

    def __setstate__(self, state: dict[str, Any]) -> None:
        FileReader.__init__(self, **state)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            for stream in self._open_files:
                stream.close()
            self._open_files.clear()
        self._local = threading.local()

    def read(self, file: str, offset: int, into: Bytes) -> None:
        stamp, end = self.stamps.get(file), offset + len(into)
        if stamp is not None and end > stamp.size:
            raise FormatError(f"its bytes end at {end:,}, beyond the end of {file} at {stamp.size:,}: truncated file?")
        try:
            stream = self._open(file)
            stream.seek(offset)
            done = 0
            while done < len(into):
                count = stream.readinto(into[done:].data)
                if not count:
                    missing = len(into) - done
                    raise FormatError(f"{file} ends at {stream.tell():,}, {missing:,} bytes early: truncated file?")
                done += count
            stat = os.fstat(stream.fileno())
        except OSError as error:
            raise FormatError(f"{file} could not be read: {error.strerror or error}") from error
        if stamp is None or stat.st_size != stamp.size or abs(stat.st_mtime_ns - stamp.mtime_ns) > self.slack_ns:
            raise FormatError(f"{file} changed while it was read: scan it again when it is no longer written to")

    def prefetch(self, batch: Batch) -> None:
        with suppress(OSError):
            advise_kernel(self._open(batch.pieces[0].file), batch.offset, batch.span, "POSIX_FADV_WILLNEED")

    def release(self, file: str, offset: int, nbytes: int) -> None:
        if self.drop_cache:
            with suppress(OSError):
                advise_kernel(self._open(file), offset, nbytes, "POSIX_FADV_DONTNEED")

    def _open(self, file: str) -> FileIO:
        """One open file per thread: a folder may have more files than the limit of open ones."""
        current: tuple[str, FileIO] | None = getattr(self._local, "stream", None)
        if current is not None and current[0] == file:
            return current[1]
        stream = FileIO(file, "rb")
        with self._lock:
            self._open_files.add(stream)
            if current is not None:
                self._open_files.discard(current[1])
        if current is not None:
            current[1].close()
        self._local.stream = (file, stream)
        advise_kernel(stream, 0, 0, "POSIX_FADV_SEQUENTIAL")
        return stream


def advise_kernel(stream: FileIO, offset: int, nbytes: int, name: str) -> None:
    """posix_fadvise, on systems that have it."""
    advice, posix_fadvise = getattr(os, name, None), getattr(os, "posix_fadvise", None)
    if posix_fadvise is not None and advice is not None:
        posix_fadvise(stream.fileno(), offset, nbytes, advice)


def scratch(nbytes: int) -> Bytes:
    """A buffer of the calling thread, valid until the thread asks for the next one."""
    buffer: Bytes | None = getattr(_SCRATCH, "buffer", None)
    if buffer is None or len(buffer) < nbytes:
        buffer = np.empty(max(nbytes, min(4 * nbytes, PIECE_BYTES)), dtype=np.uint8)
        _SCRATCH.buffer = buffer
    return buffer[:nbytes]


def read_piece(reader: Reader, piece: Piece) -> Iterator[Bytes]:
    """The values of a piece as bytes: one part, or several if it is compressed. Each is valid until the next."""
    if piece.deflated is not None:
        yield from _inflated_parts(reader, piece)
        return
    span = scratch(piece.span)
    reader.read(piece.file, piece.offset, span)
    if piece.gather is None:
        yield span
    else:
        item, shape, stride = piece.gather.item, piece.gather.shape, piece.gather.stride
        cells = np.lib.stride_tricks.as_strided(span, (*shape, item), (*(step * item for step in stride), 1))
        yield np.ascontiguousarray(cells).reshape(-1)


def read_batch(reader: Reader, batch: Batch) -> Iterator[tuple[Piece, Bytes]]:
    """The pieces of a batch, read at once."""
    span = scratch(batch.span)
    reader.read(batch.pieces[0].file, batch.offset, span)
    for piece in batch.pieces:
        start = piece.offset - batch.offset
        yield piece, span[start : start + piece.nbytes]


def _inflated_parts(reader: Reader, piece: Piece) -> Iterator[Bytes]:
    """A tensor in a compressed record, as whole elements of at most `PIECE_BYTES`."""
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
    raise FormatError(f"its compressed record ends {left - len(held):,} bytes early: truncated file?")


def _inflate(reader: Reader, piece: Piece) -> Iterator[bytes]:
    assert piece.deflated is not None
    decompressor, packed = zlib.decompressobj(-15), piece.deflated.packed
    buffer = scratch(min(_INFLATE_BYTES, packed))
    try:
        for at in range(0, packed, _INFLATE_BYTES):
            count = min(_INFLATE_BYTES, packed - at)
            reader.read(piece.file, piece.deflated.offset + at, buffer[:count])
            rest: bytes | memoryview = buffer[:count].data
            while len(rest):
                yield decompressor.decompress(rest, PIECE_BYTES)
                rest = decompressor.unconsumed_tail
    except zlib.error as error:
        raise FormatError(f"its compressed record is corrupt: {error}") from error
    yield decompressor.flush()


class LiveTensors:
    """A `Reader` of the storages of a module or state dict. An accelerator sends only the requested pieces."""

    def __init__(self, model: nn.Module | Mapping[str, object]) -> None:
        import torch

        self._storages: dict[str, torch.Tensor] = {}
        entries, views = [], []
        prefix: tuple[str, ...] = ()
        kind, types = "module", tuple[PickledModule, ...]()
        found: Iterable[tuple[str, torch.Tensor, Role]]
        if isinstance(model, Mapping):
            kind = "state dict"
            named = [(tuple(map(str, path)), tensor) for path, tensor in find_named(model, torch.Tensor)]
            prefix = find_model_prefix([path for path, _ in named])
            specs = [TensorSpec(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for _, tensor in named]
            found = [
                (".".join(path), tensor, classify(path, spec, prefix))
                for (path, tensor), spec in zip(named, specs, strict=True)
            ]
        else:
            parameters = ((name, tensor, Role.PARAMETER) for name, tensor in model.named_parameters())
            found = chain(parameters, ((name, tensor, Role.BUFFER) for name, tensor in model.named_buffers()))
            types = tuple(
                PickledModule(path, str(attribute_of(module, "original_name", type(module).__name__)))
                for path, module in model.named_modules()
            )
        for name, tensor, role in found:
            entry, view = self._describe(name, tensor.detach(), role)
            entries.append(entry)
            views.append(view)
        owners = find_owners(views)
        shared = tuple(
            replace(entry, shared_with=entries[owners[number]].name) if number in owners else entry
            for number, entry in enumerate(entries)
        )
        lead = "".join(f"{part}." for part in prefix)
        self.index = Index("", kind, tuple(self._storages), shared, model_prefix=lead, modules=types)

    def read(self, file: str, offset: int, into: Bytes) -> None:
        storage = self._storages[file]
        if offset + len(into) > len(storage):
            raise FormatError(f"its bytes end at {offset + len(into):,}, beyond its storage of {len(storage):,}")
        into[:] = storage[offset : offset + len(into)].cpu().numpy()

    def prefetch(self, batch: Batch) -> None:
        """Memory needs no prefetching."""

    def release(self, file: str, offset: int, nbytes: int) -> None:
        """The model owns its memory."""

    def _describe(self, name: str, tensor: torch.Tensor, role: Role) -> tuple[Entry, View | None]:
        import torch
        from torch.nn.parameter import is_lazy

        dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
        # A subclass may wrap other tensors.
        is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        if not is_plain or tensor.is_meta or tensor.layout is not torch.strided or is_lazy(tensor):
            return Entry(name, TensorSpec(shape, dtype), "", None, 0, role), None
        stride, item = tensor.stride(), item_bytes(dtype)
        spec = TensorSpec(shape, dtype, None if is_contiguous(shape, stride) else stride)
        storage, first = tensor.untyped_storage(), int(tensor.storage_offset())
        file = f"{storage.device}:{storage.data_ptr():x}"
        if file not in self._storages:
            self._storages[file] = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        entry = Entry(name, spec, file, first * item, spec.distinct_numel * item, role)
        return entry, View(file, first, shape, stride, item)
