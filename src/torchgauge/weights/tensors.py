"""From a tensor's bytes to its row: the work that threads and cluster workers do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchgauge.checkpoint.index import Entry, Role
from torchgauge.errors import FormatError
from torchgauge.weights import memory_layout, pruning, quantization, statistics, tally
from torchgauge.weights.decoding import decode
from torchgauge.weights.kernels import tally_bytes
from torchgauge.weights.matrix import examine
from torchgauge.weights.packings import dequantize
from torchgauge.weights.plan import Piece, TensorPlan, Unit
from torchgauge.weights.reader import Bytes, Reader, piece_parts, unit_parts
from torchgauge.weights.rows import FileRows, UnexaminableError
from torchgauge.weights.statistics import fitting
from torchgauge.weights.tally import Tally

# What a compressor is tried on: evenly spread, so that a file's order does not decide.
_SAMPLES, _SAMPLE_BYTES = 8, 64 << 10
# Of so few values, ranges say too little of what rounding does to them; of more, its errors average out.
_FEW = 1024


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a piece: its tally, or why it has none; and its values where the tensor is small."""

    piece: Piece
    tally: Tally | None
    failure: str | None = None
    values: NDArray[np.float64] | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """A tensor whose bytes have been tallied. `neighbours` are tensors of its module, which may hold its scales."""

    plan: TensorPlan
    tally: Tally
    values: NDArray[np.float64] | None = None
    deep: bool = False
    spectrum: bool = False
    heads: int | None = None
    neighbours: Mapping[str, Entry] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finished:
    """A tensor's figures; `tally` is that of its values, unpacked where they are dequantize. Two tensors whose
    `fingerprint` differs have different content; None where equal content says nothing."""

    name: str
    row: dict[str, Any]
    tally: Tally | None = None
    fingerprint: str | None = None
    failure: str | None = None


def tally_unit(reader: Reader, unit: Unit) -> list[Outcome]:
    if len(unit.pieces) == 1:
        return [_tally_piece(reader, unit.pieces[0])]
    try:
        found = [_outcome(piece, [part]) for piece, part in unit_parts(reader, unit)]
        reader.release(unit.pieces[0].file, unit.offset, unit.span)
    except FormatError:
        # One of them is to blame: alone, the others can be read.
        return [_tally_piece(reader, piece) for piece in unit.pieces]
    return found


def _tally_piece(reader: Reader, piece: Piece) -> Outcome:
    try:
        found = _outcome(piece, piece_parts(reader, piece))
    except FormatError as error:
        return Outcome(piece, None, str(error))
    reader.release(piece.file, piece.offset, piece.span)
    return found


def _outcome(piece: Piece, parts: Iterable[Bytes]) -> Outcome:
    whole, values = tally.empty(piece.dtype), []
    for part in parts:
        whole = tally.merge(whole, tally_bytes(part, piece.dtype, big_endian=piece.big_endian))
        if piece.keeps_values:
            values.append(decode(part, piece.dtype, big_endian=piece.big_endian))
    return Outcome(piece, whole, values=np.concatenate(values) if values else None)


def finish(reader: Reader, task: Task) -> Finished:
    """All figures of one tensor; the deep ones read its values again."""
    entry = task.plan.entry
    try:
        row, values = _figures(reader, task)
    except (FormatError, MemoryError, np.linalg.LinAlgError) as error:
        return Finished(entry.name, {}, failure=str(error) or type(error).__name__)
    return Finished(entry.name, row, values, fingerprint(entry, task.tally))


def _figures(reader: Reader, task: Task) -> tuple[dict[str, Any], Tally]:
    entry = task.plan.entry
    few = task.values if entry.elements <= _FEW else None
    row: dict[str, Any] = {
        **statistics.figures(task.tally, exact_values=task.values),
        **fitting(task.tally, entry.spec.dtype),
        "alignment": memory_layout.alignment(entry),
        "spectral_norm": None,
        "stable_rank": None,
        "pruning": pruning.unstructured(task.tally, exact_values=few),
        "quantization": quantization.per_tensor(task.tally, exact_values=few),
    }
    unpacked = (
        dequantize.unpack(entry, task.neighbours, partial(read_bytes, reader)) if entry.logical_elements else None
    )
    if unpacked is not None:
        row |= dequantize.unpacked_figures(unpacked)
    if task.deep:
        row |= _deep_figures(reader, task, row)
    return row, task.tally if unpacked is None else unpacked.tally


def _deep_figures(reader: Reader, task: Task, row: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"zstd": memory_layout.zstd(sample(reader, task.plan), task.plan.entry.spec.itemsize)}
    if not is_matrix(task.plan.entry):
        return found
    try:
        return found | _row_figures(reader, task, row)
    except UnexaminableError as error:
        return found | {"matrix_note": str(error)}


def _row_figures(reader: Reader, task: Task, row: dict[str, Any]) -> dict[str, Any]:
    with FileRows(task.plan, reader) as rows:
        return {
            **examine(rows, spectrum=task.spectrum),
            "quantization": quantization.deep(rows, row["quantization"]),
            "pruning": row["pruning"] | pruning.structured(rows, heads=task.heads),
        }


def is_matrix(entry: Entry) -> bool:
    """Weights that multiply; optimizer state and codes of a packing are none."""
    is_weight = entry.role is Role.PARAMETER and entry.logical_elements is None
    return is_weight and entry.spec.is_floating and len(entry.spec.shape) > 1 and entry.elements > 0


def sample(reader: Reader, plan: TensorPlan) -> bytes:
    """Bytes from all over the tensor; the beginning alone of what is compressed or has gaps."""
    plain = [piece for piece in plan.pieces if piece.is_plain]
    if not plain:
        return next(piece_parts(reader, plan.pieces[0])).tobytes()[:_SAMPLE_BYTES] if plan.pieces else b""
    parts = []
    for number in range(_SAMPLES):
        piece = plain[number * len(plain) // _SAMPLES]
        share = (number * len(plain) / _SAMPLES) % 1
        room = max(piece.nbytes - _SAMPLE_BYTES, 0)
        at = int(share * room) if len(plain) < _SAMPLES else room // 2
        part = np.empty(min(_SAMPLE_BYTES, piece.nbytes), dtype=np.uint8)
        reader.read(piece.file, piece.offset + at - at % 16, part)
        parts.append(part.tobytes())
        if plan.nbytes <= _SAMPLE_BYTES:
            break
    return b"".join(parts)


def read_bytes(reader: Reader, entry: Entry, start: int, count: int) -> bytes:
    """Some bytes of a tensor that lies plainly in a file."""
    if entry.offset is None or entry.spec.stride is not None:
        raise FormatError(f"{entry.name} does not lie plainly in a file")
    buffer = np.empty(count, dtype=np.uint8)
    reader.read(entry.file, entry.offset + start, buffer)
    return buffer.tobytes()


def fingerprint(entry: Entry, found: Tally) -> str | None:
    """None for constants: that they are equal is no news."""
    if len(found.codes) < 2:
        return None
    spec = entry.spec
    facts = (spec.shape, spec.dtype, spec.stride, found.count, found.mean, found.m2, found.m3, found.m4)
    digest = blake2b(repr(facts).encode(), digest_size=16)
    digest.update(found.codes.tobytes())
    digest.update(found.counts.tobytes())
    return digest.hexdigest()


class Duplicates:
    """Takes tensors in the order of the file and names the first of equal ones."""

    def __init__(self, reader: Reader, plans: dict[str, TensorPlan]) -> None:
        self._reader, self._plans = reader, plans
        self._firsts: dict[str, list[str]] = {}

    def first_like(self, found: Finished) -> str | None:
        """The earlier tensor with the same content; None where this is the first."""
        if found.fingerprint is None:
            return None
        known = self._firsts.setdefault(found.fingerprint, [])
        for name in known:
            if same_content(self._reader, self._plans[name], self._plans[found.name]):
                return name
        known.append(found.name)
        return None


def same_content(reader: Reader, first: TensorPlan, second: TensorPlan) -> bool:
    if first.entry.big_endian != second.entry.big_endian:
        return False
    try:
        for one, other in zip_longest(first.pieces, second.pieces):
            if one is None or other is None or one.nbytes != other.nbytes:
                return False  # chunks of other shapes: their bytes come in another order
            kept = [part.copy() for part in piece_parts(reader, one)]
            if not all(map(np.array_equal, kept, piece_parts(reader, other))):
                return False
    except FormatError:
        return False  # the file changed meanwhile: nothing is known of their equality
    return True
