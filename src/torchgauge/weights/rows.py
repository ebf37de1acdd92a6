"""A tensor as a matrix that need not fit into memory: rows are the first dimension, columns all others together."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from torchgauge.checkpoint.dtypes import item_bytes
from torchgauge.checkpoint.index import Chunk, Entry
from torchgauge.errors import FormatError
from torchgauge.weights.decoding import row_values, without_infinities
from torchgauge.weights.plan import TensorPlan
from torchgauge.weights.reader import Reader, piece_parts, scratch


class Rows(Protocol):
    """What the deep passes read. A convolution is its matrix: outputs × (inputs · kernel)."""

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> str:
        """The stored type, by torch's name."""
        ...

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """The shape before it became a matrix."""
        ...

    @property
    def shape(self) -> tuple[int, int]: ...

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Consecutive blocks of whole rows, C-contiguous float32 (float64 for types that need it), each call from the
        start. Values that are not finite come as 0. A block is only valid until the next one is asked for."""
        ...


class ArrayRows:
    """A matrix in memory."""

    def __init__(self, name: str, array: NDArray[Any], dtype: str | None = None) -> None:
        self.name = name
        self.dtype = dtype or str(array.dtype)
        self.tensor_shape: tuple[int, ...] = tuple(array.shape)
        matrix = array.reshape(array.shape[0], -1) if array.ndim > 1 and array.size else array.reshape(-1, 1)
        kept = matrix if matrix.dtype in (np.float32, np.float64) else matrix.astype(np.float32)
        finite = np.isfinite(kept)
        self._matrix = np.ascontiguousarray(kept if finite.all() else np.where(finite, kept, kept.dtype.type(0)))

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self._matrix.shape
        return rows, columns

    def blocks(self) -> Iterator[NDArray[Any]]:
        yield self._matrix


# Blocks are counted in values, so that tensors of one shape have the same blocks whatever their type.
BLOCK_VALUES = 4 << 20
# A tensor that must be had whole (in an order of its own, or compressed), or a single row.
WHOLE_BYTES = 256 << 20
# What all tensors that are being examined may keep of their values, so that they are not read for every pass.
KEPT_BYTES = 512 << 20


class UnexaminableError(FormatError):
    """The tensor cannot be read as rows within bounded memory; the figures that need none still hold."""


class Budget:
    """Memory that several threads share."""

    def __init__(self, nbytes: int) -> None:
        self._left, self._lock = nbytes, threading.Lock()

    def take(self, nbytes: int) -> bool:
        with self._lock:
            granted = nbytes <= self._left
            self._left -= nbytes if granted else 0
        return granted

    def give(self, nbytes: int) -> None:
        with self._lock:
            self._left += nbytes


KEPT = Budget(KEPT_BYTES)


class FileRows:
    """`Rows` of a tensor in a file. Used in a `with` block, it keeps the values while the budget allows.

    `is_finite`: values that are not finite come as 0."""

    def __init__(self, plan: TensorPlan, reader: Reader, *, is_finite: bool = True) -> None:
        spec = plan.entry.spec
        self.name, self.dtype, self.tensor_shape = plan.name, spec.dtype, spec.shape
        self._plan, self._reader, self._is_finite = plan, reader, is_finite
        self._kept: list[NDArray[Any]] = []
        self._granted = 0
        self._columns = prod(spec.shape[1:]) if len(spec.shape) > 1 else 1
        _refuse_long_rows(plan.entry, self._columns)

    @property
    def shape(self) -> tuple[int, int]:
        return (self.tensor_shape[0] if self.tensor_shape else 1), self._columns

    def __enter__(self) -> FileRows:
        nbytes = 8 * prod(self.shape) if self.dtype == "float64" else 4 * prod(self.shape)
        self._granted = nbytes if KEPT.take(nbytes) else 0
        return self

    def __exit__(self, *_: object) -> None:
        self._kept = []
        KEPT.give(self._granted)
        self._granted = 0

    def blocks(self) -> Iterator[NDArray[Any]]:
        if self._kept:
            yield from self._kept
            return
        kept = []
        for block in self._read_blocks():
            values = without_infinities(block) if self._is_finite else block
            if self._granted:
                kept.append(values)
            yield values
        self._kept = kept

    def _read_blocks(self) -> Iterator[NDArray[Any]]:
        chunks = _chunks(self._plan.entry)
        whole = None if chunks else self._whole()
        rows, columns = self.shape
        together = max(BLOCK_VALUES // max(columns, 1), 1)
        for start in range(0, rows, together):
            stop = min(start + together, rows)
            yield self._assemble(chunks, start, stop) if whole is None else np.array(whole[start:stop])

    def _assemble(self, chunks: tuple[Chunk, ...], start: int, stop: int) -> NDArray[Any]:
        if len(chunks) == 1:
            return self._chunk_rows(chunks[0], start, stop).reshape(stop - start, self._columns)
        parts = [chunk for chunk in chunks if chunk.corner[0] < stop and chunk.corner[0] + chunk.shape[0] > start]
        block: NDArray[Any] | None = None
        for chunk in parts:
            first, last = max(start, chunk.corner[0]), min(stop, chunk.corner[0] + chunk.shape[0])
            values = self._chunk_rows(chunk, first - chunk.corner[0], last - chunk.corner[0])
            if block is None:
                block = np.zeros((stop - start, *self.tensor_shape[1:]), dtype=values.dtype)
            inner = (slice(at, at + size) for at, size in zip(chunk.corner[1:], chunk.shape[1:], strict=True))
            block[(slice(first - start, last - start), *inner)] = values
        assert block is not None
        return block.reshape(stop - start, self._columns)

    def _chunk_rows(self, chunk: Chunk, start: int, stop: int) -> NDArray[Any]:
        shape = (stop - start, *chunk.shape[1:])
        row = prod(chunk.shape[1:]) * item_bytes(self.dtype)
        buffer = scratch((stop - start) * row)
        assert chunk.offset is not None
        self._reader.read(chunk.file, chunk.offset + start * row, buffer)
        return row_values(buffer, self.dtype, big_endian=self._plan.entry.big_endian).reshape(shape)

    def _whole(self) -> NDArray[Any]:
        """Values in an order of their own, or compressed: all at once."""
        entry = self._plan.entry
        if entry.nbytes > WHOLE_BYTES:
            raise UnexaminableError(f"{entry.nbytes:,} bytes are too many to be put into the order of its rows")
        parts = [part.copy() for piece in self._plan.pieces for part in piece_parts(self._reader, piece)]
        values = row_values(np.concatenate(parts), self.dtype, big_endian=entry.big_endian)
        return in_logical_order(values, entry).reshape(self.shape)


def _refuse_long_rows(entry: Entry, columns: int) -> None:
    if 4 * columns > WHOLE_BYTES:
        raise UnexaminableError(f"a row of {columns:,} values is too long to be examined at once")


def _chunks(entry: Entry) -> tuple[Chunk, ...]:
    """The parts that lie plainly in files; none where the tensor has to be put in order first."""
    if entry.chunks:
        return entry.chunks
    if entry.offset is None or entry.spec.stride is not None:
        return ()
    shape = entry.spec.shape or (1,)
    return (Chunk((0,) * len(shape), shape, entry.file, entry.offset, entry.nbytes),)


def in_logical_order(values: NDArray[Any], entry: Entry) -> NDArray[Any]:
    """From the order in which the pieces give the values (by falling step) to that of the tensor's indices."""
    shape, stride = entry.spec.shape, entry.spec.stride
    if stride is None:
        return values.reshape(shape)
    # A dimension without a step has its values once, one of size 1 does not matter where it is.
    order = sorted((d for d in range(len(shape)) if stride[d] and shape[d] > 1), key=lambda d: (-stride[d], -shape[d]))
    stored = values.reshape([shape[d] for d in order])
    moved = stored.transpose([order.index(d) for d in sorted(order)])
    kept = [shape[d] if d in order else 1 for d in range(len(shape))]
    return np.broadcast_to(moved.reshape(kept), shape)


def common_exponent(rows: Rows) -> int:
    """0 for float32, whose squares float64 can hold; for float64 it takes a reading of its own."""
    largest = 0.0
    for block in rows.blocks():
        if block.dtype == np.float32:
            return 0
        largest = max(largest, float(block.max(initial=0.0)), -float(block.min(initial=0.0)))
    return int(np.frexp(largest)[1])


def scaled_blocks(rows: Rows, exponent: int) -> Iterator[NDArray[Any]]:
    """In units of 2**exponent; whole rows."""
    for block in rows.blocks():
        yield np.ldexp(block, -exponent) if exponent else block
