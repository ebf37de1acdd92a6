"""From a tensor's bytes to its row: the work that threads and cluster workers do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchgauge.checkpoint.index import Entry, Role
from torchgauge.errors import FormatError
from torchgauge.weights.counting import statistics, tally
from torchgauge.weights.counting.fitting import fitting
from torchgauge.weights.counting.tally import Tally
from torchgauge.weights.kernels import tally_bytes
from torchgauge.weights.matrix import examine
from torchgauge.weights.packings import packed
from torchgauge.weights.potential import layout, pruning, quantization
from torchgauge.weights.stream.decoding import decode
from torchgauge.weights.stream.file_rows import FileRows, UnexaminableError
from torchgauge.weights.stream.pieces import Piece
from torchgauge.weights.stream.plan import TensorPlan, Unit
from torchgauge.weights.stream.reading import Bytes, Reader, piece_parts, unit_parts

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
    """A tensor's figures; `tally` is that of its values, unpacked where they are packed. Two tensors whose
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
        "alignment": layout.alignment(entry),
        "spectral_norm": None,
        "stable_rank": None,
        "pruning": pruning.unstructured(task.tally, exact_values=few),
        "quantization": quantization.per_tensor(task.tally, exact_values=few),
    }
    unpacked = packed.unpack(entry, task.neighbours, partial(read_bytes, reader)) if entry.logical_elements else None
    if unpacked is not None:
        row |= packed.unpacked_figures(unpacked)
    if task.deep:
        row |= _deep_figures(reader, task, row)
    return row, task.tally if unpacked is None else unpacked.tally


def _deep_figures(reader: Reader, task: Task, row: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"zstd": layout.zstd(sample(reader, task.plan), task.plan.entry.spec.itemsize)}
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
