"""A tensor as a matrix that need not fit into memory: rows are the first dimension, columns all others together."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from math import prod
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from torchgauge.checkpoint import Chunk
from torchgauge.checkpoint.dtypes import item_bytes
from torchgauge.errors import FormatError
from torchgauge.weights.plan import TensorPlan
from torchgauge.weights.reader import Reader, read_piece, scratch
from torchgauge.weights.symbols import symbol_of, values_of

# Types with values that are not exact in float32.
_FLOAT64_TYPES = ("float64", "int32", "uint32", "int64", "uint64")


def decode(
    buffer: NDArray[np.uint8], dtype: str, *, big_endian: bool = False, elements: int | None = None
) -> NDArray[np.float64]:
    """All values as float64, in order; complex numbers as real and imaginary part. `elements` is needed for sub-byte
    types whose last byte is not full."""
    symbol = symbol_of(dtype)
    if symbol.bits < 8:
        shifts = np.arange(0, 8, symbol.bits, dtype=np.uint8)
        codes = ((buffer[:, None] >> shifts) & np.uint8((1 << symbol.bits) - 1)).reshape(-1)[:elements]
    else:
        stored = np.dtype(symbol.name if symbol.pattern is None else f"u{symbol.bits // 8}")
        codes = buffer.view(stored.newbyteorder(">") if big_endian else stored)
    return codes.astype(np.float64) if symbol.pattern is None else values_of(symbol.pattern)[codes]


def decode_rows(buffer: NDArray[np.uint8], dtype: str, *, big_endian: bool = False) -> NDArray[np.floating]:
    """All values as float32, or float64 for types that need it. NaN and ±inf are kept."""
    symbol = symbol_of(dtype)
    if symbol.item_bits % 8 or dtype.startswith("complex"):
        raise FormatError(f"{dtype} does not store one number per element")
    order: Literal[">", "<"] = ">" if big_endian else "<"
    if dtype == "bfloat16":
        return (buffer.view(f"{order}u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    if symbol.item_bits == 8 and symbol.pattern is not None:
        return values_of(symbol.pattern).astype(np.float32)[buffer]
    stored = buffer.view(np.dtype(symbol.name).newbyteorder(order))
    return stored.astype(np.float64 if symbol.name in _FLOAT64_TYPES else np.float32)


def zero_nonfinite(values: NDArray[np.floating]) -> NDArray[np.floating]:
    """Replace NaN and ±inf by 0, in place."""
    # A sum is cheap, and finite only if every value is.
    with np.errstate(invalid="ignore", over="ignore"):
        is_finite = np.isfinite(values.sum(dtype=np.float64))
    if not is_finite:
        values[~np.isfinite(values)] = 0
    return values


# Blocks are sized in values, so that tensors of equal shape have equal blocks whatever their type.
BLOCK_VALUES = 4 << 20
# Largest single row, and largest strided or compressed tensor, which is read at once.
MAX_READ_BYTES = 256 << 20
# All tensors in progress together may keep this much, so that they are not read again for every pass.
KEPT_BYTES = 512 << 20


class RowsUnavailableError(FormatError):
    """The tensor cannot be read as rows within bounded memory; figures that do not need rows still hold."""


class Rows(Protocol):
    """The input of the deep passes. A convolution is the matrix outputs × (inputs · kernel)."""

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> str:
        """The stored type, by torch's name."""
        ...

    @property
    def tensor_shape(self) -> tuple[int, ...]: ...

    @property
    def shape(self) -> tuple[int, int]: ...

    def blocks(self) -> Iterator[NDArray[np.floating]]:
        """Consecutive blocks of whole rows as C-contiguous float32 (float64 for types that need it), from the start at
        each call. NaN and ±inf are replaced by 0. A block is valid until the next one is requested."""
        ...


class ArrayRows:
    """A matrix in memory."""

    def __init__(self, name: str, array: NDArray[np.floating], dtype: str | None = None) -> None:
        self.name = name
        self.dtype = dtype or str(array.dtype)
        self.tensor_shape: tuple[int, ...] = tuple(array.shape)
        matrix = array.reshape(array.shape[0], -1) if array.ndim > 1 and array.size else array.reshape(-1, 1)
        values = matrix if matrix.dtype in (np.float32, np.float64) else matrix.astype(np.float32)
        is_finite = np.isfinite(values)
        self._matrix = np.ascontiguousarray(
            values if is_finite.all() else np.where(is_finite, values, values.dtype.type(0))
        )

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self._matrix.shape
        return rows, columns

    def blocks(self) -> Iterator[NDArray[np.floating]]:
        yield self._matrix


def common_exponent(rows: Rows) -> int:
    """The power of two in whose unit squares neither overflow nor vanish: 0 for float32, whose squares fit float64."""
    largest = 0.0
    for block in rows.blocks():
        if block.dtype == np.float32:
            return 0
        largest = max(largest, float(block.max(initial=0.0)), -float(block.min(initial=0.0)))
    return int(np.frexp(largest)[1])


def scaled_blocks(rows: Rows, exponent: int) -> Iterator[NDArray[np.floating]]:
    """The blocks in units of 2**exponent."""
    for block in rows.blocks():
        yield np.ldexp(block, -exponent) if exponent else block


class MemoryBudget:
    """Memory that threads share."""

    def __init__(self, nbytes: int) -> None:
        self._left, self._lock = nbytes, threading.Lock()

    def take(self, nbytes: int) -> bool:
        with self._lock:
            is_granted = nbytes <= self._left
            self._left -= nbytes if is_granted else 0
        return is_granted

    def give_back(self, nbytes: int) -> None:
        with self._lock:
            self._left += nbytes


KEPT = MemoryBudget(KEPT_BYTES)


class FileRows:
    """`Rows` of a stored tensor. In a `with` block it keeps its values while the budget allows.

    With `is_finite`, NaN and ±inf are replaced by 0.
    """

    def __init__(self, plan: TensorPlan, reader: Reader, *, is_finite: bool = True) -> None:
        entry = plan.entry
        self.name, self.dtype, self.tensor_shape = plan.name, entry.spec.dtype, entry.spec.shape
        self._plan, self._reader, self._is_finite = plan, reader, is_finite
        self._kept: list[NDArray[np.floating]] = []
        self._granted = 0
        self._columns = prod(self.tensor_shape[1:]) if len(self.tensor_shape) > 1 else 1
        if 4 * self._columns > MAX_READ_BYTES:
            raise RowsUnavailableError(f"rows of {self._columns:,} values are too long")
        # The contiguous parts in files; none for a tensor that has to be reordered or inflated first.
        self._chunks = entry.chunks
        if not entry.chunks and entry.offset is not None and entry.spec.stride is None:
            shape = entry.spec.shape or (1,)
            self._chunks = (Chunk((0,) * len(shape), shape, entry.file, entry.offset, entry.nbytes),)

    @property
    def shape(self) -> tuple[int, int]:
        return (self.tensor_shape[0] if self.tensor_shape else 1), self._columns

    def __enter__(self) -> FileRows:
        nbytes = (8 if self.dtype == "float64" else 4) * prod(self.shape)
        self._granted = nbytes if KEPT.take(nbytes) else 0
        return self

    def __exit__(self, *_: object) -> None:
        self._kept = []
        KEPT.give_back(self._granted)
        self._granted = 0

    def blocks(self) -> Iterator[NDArray[np.floating]]:
        if self._kept:
            yield from self._kept
            return
        kept = []
        whole = None if self._chunks else self._read_whole()
        rows, columns = self.shape
        together = max(BLOCK_VALUES // max(columns, 1), 1)
        for start in range(0, rows, together):
            stop = min(start + together, rows)
            block = self._read_block(start, stop) if whole is None else np.array(whole[start:stop])
            values = zero_nonfinite(block) if self._is_finite else block
            if self._granted:
                kept.append(values)
            yield values
        self._kept = kept

    def _read_block(self, start: int, stop: int) -> NDArray[np.floating]:
        if len(self._chunks) == 1:
            return self._read_chunk(self._chunks[0], start, stop).reshape(stop - start, self._columns)
        block: NDArray[np.floating] | None = None
        for chunk in self._chunks:
            top = chunk.corner[0]
            first, last = max(start, top), min(stop, top + chunk.shape[0])
            if first >= last:
                continue
            values = self._read_chunk(chunk, first - top, last - top)
            if block is None:
                block = np.zeros((stop - start, *self.tensor_shape[1:]), dtype=values.dtype)
            inner = (slice(at, at + size) for at, size in zip(chunk.corner[1:], chunk.shape[1:], strict=True))
            block[(slice(first - start, last - start), *inner)] = values
        assert block is not None
        return block.reshape(stop - start, self._columns)

    def _read_chunk(self, chunk: Chunk, start: int, stop: int) -> NDArray[np.floating]:
        row_bytes = prod(chunk.shape[1:]) * item_bytes(self.dtype)
        buffer = scratch((stop - start) * row_bytes)
        assert chunk.offset is not None
        self._reader.read(chunk.file, chunk.offset + start * row_bytes, buffer)
        values = decode_rows(buffer, self.dtype, big_endian=self._plan.entry.big_endian)
        return values.reshape(stop - start, *chunk.shape[1:])

    def _read_whole(self) -> NDArray[np.floating]:
        """A strided or compressed tensor, at once."""
        entry = self._plan.entry
        if entry.nbytes > MAX_READ_BYTES:
            raise RowsUnavailableError(f"{entry.nbytes:,} bytes are too many to reorder in memory")
        parts = [part.copy() for piece in self._plan.pieces for part in read_piece(self._reader, piece)]
        values = decode_rows(np.concatenate(parts), self.dtype, big_endian=entry.big_endian)
        # From the order of the pieces (descending stride) to the order of the tensor's indices.
        shape, stride = entry.spec.shape, entry.spec.stride
        if stride is not None:
            # Expanded dimensions are stored once; those of size 1 can be anywhere.
            stored = [d for d in range(len(shape)) if stride[d] and shape[d] > 1]
            order = sorted(stored, key=lambda d: (-stride[d], -shape[d]))
            moved = values.reshape([shape[d] for d in order]).transpose([order.index(d) for d in stored])
            kept = [shape[d] if d in order else 1 for d in range(len(shape))]
            values = np.broadcast_to(moved.reshape(kept), shape)
        return values.reshape(self.shape)
