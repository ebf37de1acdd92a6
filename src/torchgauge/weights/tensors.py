"""One tensor, from bytes to its row: the work done by threads and cluster workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from torchgauge.checkpoint import Entry, Role
from torchgauge.errors import FormatError
from torchgauge.weights.matrix import matrix_figures
from torchgauge.weights.memory_layout import alignment, zstd_ratios
from torchgauge.weights.packings import dequantized_figures, unpack
from torchgauge.weights.passes import tally_bytes
from torchgauge.weights.plan import Batch, Piece, TensorPlan
from torchgauge.weights.pruning import structured_pruning, unstructured_pruning
from torchgauge.weights.quantization import row_quantization, tensor_quantization
from torchgauge.weights.reader import Bytes, Reader, read_batch, read_piece
from torchgauge.weights.rows import FileRows, RowsUnavailableError, decode
from torchgauge.weights.statistics import narrower_dtype, value_statistics
from torchgauge.weights.tally import Tally, empty_tally, merge_tallies

if TYPE_CHECKING:
    from torchgauge.facts.document_types import ScannedTensor

# zstd is tried on samples spread evenly over the tensor.
_ZSTD_SAMPLES, _ZSTD_SAMPLE_BYTES = 8, 64 << 10
# With so few values, their ranges do not show what rounding does to them; with more, errors average out.
_EXACT_QUANTIZATION_MAX_ELEMENTS = 1024


@dataclass(frozen=True, slots=True)
class PieceTally:
    """The tally of a piece, or the reason why there is none; also its values, if the tensor is small."""

    piece: Piece
    tally: Tally | None
    failure: str | None = None
    values: NDArray[np.float64] | None = None


@dataclass(frozen=True, slots=True)
class TensorTask:
    """A tensor whose pieces have been merged. `neighbours` are tensors of its module, which may hold its scales."""

    plan: TensorPlan
    tally: Tally
    values: NDArray[np.float64] | None = None
    deep: bool = False
    spectrum: bool = False
    heads: int | None = None
    neighbours: Mapping[str, Entry] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TensorResult:
    """The figures of a tensor. `tally` is over its values, dequantized if packed. Tensors with different `fingerprint`
    have different content; None for constant tensors."""

    name: str
    row: ScannedTensor
    tally: Tally | None = None
    fingerprint: str | None = None
    failure: str | None = None


def tally_batch(reader: Reader, batch: Batch) -> list[PieceTally]:
    if len(batch.pieces) > 1:
        try:
            tallies = [_tally(piece, [part]) for piece, part in read_batch(reader, batch)]
            reader.release(batch.pieces[0].file, batch.offset, batch.span)
            return tallies
        except FormatError:
            pass  # one of them cannot be read: read each on its own
    tallies = []
    for piece in batch.pieces:
        try:
            tallies.append(_tally(piece, read_piece(reader, piece)))
            reader.release(piece.file, piece.offset, piece.span)
        except FormatError as error:
            tallies.append(PieceTally(piece, None, str(error)))
    return tallies


def _tally(piece: Piece, parts: Iterable[Bytes]) -> PieceTally:
    total, values = empty_tally(piece.dtype), []
    for part in parts:
        total = merge_tallies(total, tally_bytes(part, piece.dtype, big_endian=piece.big_endian))
        if piece.keeps_values:
            values.append(decode(part, piece.dtype, big_endian=piece.big_endian))
    return PieceTally(piece, total, values=np.concatenate(values) if values else None)


def derive_figures(reader: Reader, task: TensorTask) -> TensorResult:
    """All figures of one tensor; the deep ones read its values again."""
    entry = task.plan.entry
    try:
        row, values = _figures(reader, task)
    except (FormatError, MemoryError, np.linalg.LinAlgError) as error:
        return TensorResult(entry.name, {}, failure=str(error) or type(error).__name__)
    tally, spec = task.tally, entry.spec
    if len(tally.codes) < 2:  # of constant tensors many are equal, and none is a mistake
        return TensorResult(entry.name, row, values)
    identity = (spec.shape, spec.dtype, spec.stride, tally.count, tally.mean, tally.m2, tally.m3, tally.m4)
    digest = blake2b(repr(identity).encode(), digest_size=16)
    digest.update(tally.codes.tobytes())
    digest.update(tally.counts.tobytes())
    return TensorResult(entry.name, row, values, digest.hexdigest())


def _figures(reader: Reader, task: TensorTask) -> tuple[ScannedTensor, Tally]:
    entry = task.plan.entry
    exact = task.values if entry.elements <= _EXACT_QUANTIZATION_MAX_ELEMENTS else None
    pruning = unstructured_pruning(task.tally, exact_values=exact)
    quantization = tensor_quantization(task.tally, exact_values=exact)
    row = cast("ScannedTensor", value_statistics(task.tally, exact_values=task.values))
    if fits := narrower_dtype(task.tally, entry.spec.dtype):
        row["fits"] = fits
    row["alignment"] = alignment(entry)
    row["spectral_norm"] = row["stable_rank"] = None
    row["pruning"], row["quantization"] = pruning, quantization
    read = partial(read_bytes, reader)
    unpacked = unpack(entry, task.neighbours, read) if entry.logical_elements else None
    if unpacked is not None:
        row = {**row, **dequantized_figures(unpacked)}
    if task.deep:
        row["zstd"] = zstd_ratios(_sample(reader, task.plan), entry.spec.itemsize)
        # A parameter of two or more dimensions; not optimizer state, not packed codes.
        is_weight = entry.role is Role.PARAMETER and entry.logical_elements is None and entry.elements > 0
        if is_weight and entry.spec.is_floating and len(entry.spec.shape) > 1:
            try:
                with FileRows(task.plan, reader) as rows:
                    row = {
                        **row,
                        **matrix_figures(rows, spectrum=task.spectrum),
                        "quantization": row_quantization(rows, quantization),
                        "pruning": {**pruning, **structured_pruning(rows, heads=task.heads)},
                    }
            except RowsUnavailableError as error:
                row["matrix_note"] = str(error)
    return row, task.tally if unpacked is None else unpacked.tally


def _sample(reader: Reader, plan: TensorPlan) -> bytes:
    """Bytes from all over the tensor; only its beginning if it is compressed or strided."""
    plain = [piece for piece in plan.pieces if piece.is_plain]
    if not plain:
        return next(read_piece(reader, plan.pieces[0])).tobytes()[:_ZSTD_SAMPLE_BYTES] if plan.pieces else b""
    samples = []
    for number in range(_ZSTD_SAMPLES):
        piece = plain[number * len(plain) // _ZSTD_SAMPLES]
        share = (number * len(plain) / _ZSTD_SAMPLES) % 1
        room = max(piece.nbytes - _ZSTD_SAMPLE_BYTES, 0)
        at = int(share * room) if len(plain) < _ZSTD_SAMPLES else room // 2
        buffer = np.empty(min(_ZSTD_SAMPLE_BYTES, piece.nbytes), dtype=np.uint8)
        reader.read(piece.file, piece.offset + at - at % 16, buffer)
        samples.append(buffer.tobytes())
        if plan.nbytes <= _ZSTD_SAMPLE_BYTES:
            break
    return b"".join(samples)


def read_bytes(reader: Reader, entry: Entry, start: int, count: int) -> bytes:
    """Some bytes of a tensor that is stored contiguously in one file."""
    if entry.offset is None or entry.spec.stride is not None:
        raise FormatError(f"{entry.name} is not contiguous in its file")
    buffer = np.empty(count, dtype=np.uint8)
    reader.read(entry.file, entry.offset + start, buffer)
    return buffer.tobytes()


class Duplicates:
    """Finds tensors with equal content: equal fingerprints first, then every byte."""

    def __init__(self, reader: Reader, plans: Mapping[str, TensorPlan]) -> None:
        self._reader, self._plans = reader, plans
        self._firsts: dict[str, list[str]] = {}

    def first_equal(self, tensor: TensorResult) -> str | None:
        """The first of the tensors seen so far with the same content, if any."""
        if tensor.fingerprint is None:
            return None
        candidates = self._firsts.setdefault(tensor.fingerprint, [])
        second = self._plans[tensor.name]
        for name in candidates:
            first = self._plans[name]
            if first.entry.big_endian != second.entry.big_endian or len(first.pieces) != len(second.pieces):
                continue
            pairs = list(zip(first.pieces, second.pieces, strict=True))
            if any(one.nbytes != other.nbytes for one, other in pairs):
                continue  # different chunks: their bytes come in a different order
            with suppress(FormatError):  # the file has changed since it was tallied
                for one, other in pairs:
                    copies = [part.copy() for part in read_piece(self._reader, one)]
                    if not all(map(np.array_equal, copies, read_piece(self._reader, other))):
                        break
                else:
                    return name
        candidates.append(tensor.name)
        return None
