"""Which bytes are read for each tensor, in which order: the same on one thread and on a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from torchgauge.checkpoint import limits
from torchgauge.checkpoint.dtypes import VALUES_PER_BYTE, item_bytes
from torchgauge.checkpoint.index import Chunk, Deflated, Entry, Index
from torchgauge.weights.statistics import EXACT_ELEMENTS
from torchgauge.weights.symbols import SYMBOLS, is_exact

# Pieces do not depend on the number of workers: merged in their order, they give the same result everywhere.
PIECE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Gather:
    """Values that lie apart: their shape and steps in elements of `item` bytes, from the piece's offset on."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    item: int

    @property
    def span(self) -> int:
        """Bytes from the first value to the end of the last."""
        return (1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))) * self.item


@dataclass(frozen=True, slots=True)
class Piece:
    """`nbytes` from `offset` of `file`, whole elements of type `dtype`, in no order that matters.

    A piece of a compressed record (`deflated`) is the whole tensor, since its bytes can only be had from the start;
    it is read in parts all the same. `keeps_values`: the tensor is small enough for figures from its very values."""

    tensor: str
    number: int
    file: str
    offset: int
    nbytes: int
    dtype: str
    big_endian: bool = False
    gather: Gather | None = None
    deflated: Deflated | None = None
    keeps_values: bool = False

    @property
    def span(self) -> int:
        """Bytes of the file that are read for it."""
        if self.deflated is not None:
            return self.deflated.packed
        return self.nbytes if self.gather is None else self.gather.span

    @property
    def is_plain(self) -> bool:
        return self.gather is None and self.deflated is None


# Small neighbours are read together: a read has a price of its own.
BATCH_BYTES = 2 << 20
BATCH_GAP_BYTES = 64 << 10
BATCH_PIECES = 512

_META = "no values are stored: it is on the meta device"
_PACKED_IN_MEMORY = "its compressed bytes lie in another compressed record"


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """How the values of a tensor are read; `skipped` says why they are not."""

    entry: Entry
    pieces: tuple[Piece, ...] = ()
    skipped: str | None = None

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def nbytes(self) -> int:
        return sum(piece.span for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Unit:
    """Pieces that are read in one go: one of any kind, or small plain neighbours of one file."""

    pieces: tuple[Piece, ...]

    @property
    def offset(self) -> int:
        return self.pieces[0].offset

    @property
    def span(self) -> int:
        """Bytes of the file that are read, gaps between neighbours included."""
        last = self.pieces[-1]
        return last.offset + last.span - self.offset


def make_plan(index: Index) -> list[TensorPlan]:
    """The tensors in the order of their bytes, without those that are the same view of the same bytes as another."""
    copies = same_views(index)
    numbers = {file: number for number, file in enumerate(index.files)}
    plans = [plan_tensor(entry) for entry in index.entries if entry.name not in copies]
    return sorted(plans, key=lambda plan: _position(plan, numbers))


def _position(plan: TensorPlan, numbers: dict[str, int]) -> tuple[int, int]:
    if not plan.pieces:
        return len(numbers), 0
    return numbers.get(plan.pieces[0].file, len(numbers)), plan.pieces[0].offset


def same_views(index: Index) -> dict[str, str]:
    """Name -> the tensor that is the same view of the same bytes."""
    by_name = {entry.name: entry for entry in index.entries}
    return {
        entry.name: entry.shared_with
        for entry in index.entries
        if entry.shared_with in by_name and _is_same_view(entry, by_name[entry.shared_with])
    }


def _is_same_view(entry: Entry, owner: Entry) -> bool:
    return (entry.spec, entry.file, entry.offset, entry.deflated) == (
        owner.spec,
        owner.file,
        owner.offset,
        owner.deflated,
    ) and not entry.chunks


def plan_tensor(entry: Entry) -> TensorPlan:
    if entry.spec.dtype not in SYMBOLS:
        return TensorPlan(entry, skipped=f"values of type {entry.spec.dtype} cannot be read: their layout is not known")
    if not entry.elements:
        return TensorPlan(entry)
    if entry.deflated is not None:
        return _plan_deflated(entry, entry.deflated)
    if entry.chunks:
        return _plan_chunks(entry)
    if entry.offset is None:
        return TensorPlan(entry, skipped=_PACKED_IN_MEMORY if entry.file else _META)
    if is_dense(entry):
        return TensorPlan(entry, tuple(_cut(entry, [(entry.file, entry.offset, entry.nbytes)])))
    if entry.spec.dtype in VALUES_PER_BYTE:
        return TensorPlan(entry, skipped="its packed values do not lie side by side")
    return TensorPlan(entry, tuple(_gathered(entry, entry.offset)))


def _plan_chunks(entry: Entry) -> TensorPlan:
    runs = [_run(chunk) for chunk in entry.chunks]
    known = [run for run in runs if run is not None]
    if len(known) < len(runs):
        return TensorPlan(entry, skipped="a part of it is compressed")
    return TensorPlan(entry, tuple(_cut(entry, known)))


def _run(chunk: Chunk) -> tuple[str, int, int] | None:
    return None if chunk.offset is None else (chunk.file, chunk.offset, chunk.nbytes)


def _plan_deflated(entry: Entry, deflated: Deflated) -> TensorPlan:
    if deflated.size > limits.INFLATION_RATIO * max(deflated.packed, 1):
        return TensorPlan(entry, skipped="its record unpacks to more than compression can explain: a zip bomb?")
    if not is_dense(entry):
        return TensorPlan(entry, skipped="it is compressed, and its values do not lie side by side")
    return TensorPlan(entry, (_piece(entry, 0, entry.file, deflated.offset, entry.nbytes, deflated=deflated),))


def is_dense(entry: Entry) -> bool:
    """Do the distinct values fill one run of bytes, in whatever order? An expanded dimension has its values once."""
    expected = 1
    for step, size in reversed(_dimensions(entry)):
        if step != expected:
            return False
        expected *= size
    return True


def _dimensions(entry: Entry) -> list[tuple[int, int]]:
    """(step, size), the largest step first; those without a step or with one value do not move."""
    spec = entry.spec
    if spec.stride is None:
        return [(1, spec.numel)]
    return sorted(((t, n) for t, n in zip(spec.stride, spec.shape, strict=True) if t and n > 1), reverse=True)


def _cut(entry: Entry, runs: Iterable[tuple[str, int, int]]) -> Iterator[Piece]:
    size, number = PIECE_BYTES - PIECE_BYTES % item_bytes(entry.spec.dtype), 0
    for file, start, nbytes in runs:
        for at in range(0, nbytes, size):
            yield _piece(entry, number, file, start + at, min(size, nbytes - at))
            number += 1


def _piece(
    entry: Entry, number: int, file: str, offset: int, nbytes: int,
    gather: Gather | None = None, deflated: Deflated | None = None,
) -> Piece:  # fmt: skip
    dtype = entry.spec.dtype
    keeps_values = entry.elements <= EXACT_ELEMENTS and not is_exact(dtype)
    return Piece(entry.name, number, file, offset, nbytes, dtype, entry.big_endian, gather, deflated, keeps_values)


def _gathered(entry: Entry, start: int) -> Iterator[Piece]:
    """Boxes of values whose span is bounded."""
    item = item_bytes(entry.spec.dtype)
    for number, (at, box) in enumerate(_boxes(_dimensions(entry), item)):
        gather = Gather(tuple(size for _, size in box), tuple(step for step, _ in box), item)
        yield _piece(entry, number, entry.file, start + at * item, item * prod(gather.shape), gather)


def _boxes(dimensions: Sequence[tuple[int, int]], item: int) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """The first element of each box, and its dimensions; the outermost is cut first."""
    if not dimensions:
        yield 0, []
        return
    (step, size), *inner = dimensions
    reach = 1 + sum((n - 1) * t for t, n in inner)
    together = (PIECE_BYTES // item - reach) // step + 1 if reach * item <= PIECE_BYTES else 0
    if together < 1:
        for place in range(size):
            yield from ((place * step + at, box) for at, box in _boxes(inner, item))
        return
    for place in range(0, size, together):
        yield place * step, [(step, min(together, size - place)), *inner]


def make_units(pieces: Iterable[Piece]) -> Iterator[Unit]:
    """The pieces in their order; small plain ones that follow each other in a file are put together."""
    batch: list[Piece] = []
    for piece in pieces:
        if batch and not _joins(piece, batch):
            yield Unit(tuple(batch))
            batch = []
        batch.append(piece)
    if batch:
        yield Unit(tuple(batch))


def _joins(piece: Piece, batch: list[Piece]) -> bool:
    first, last = batch[0], batch[-1]
    if not (piece.is_plain and last.is_plain) or piece.file != last.file or len(batch) >= BATCH_PIECES:
        return False
    gap = piece.offset - (last.offset + last.nbytes)
    return 0 <= gap <= BATCH_GAP_BYTES and piece.offset + piece.nbytes - first.offset <= BATCH_BYTES
