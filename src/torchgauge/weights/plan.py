"""Read plan: which bytes are read for each tensor, and in which order. The same for threads and for a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from torchgauge.checkpoint import Deflated, Entry, Index, limits
from torchgauge.checkpoint.dtypes import VALUES_PER_BYTE, item_bytes
from torchgauge.weights.statistics import EXACT_QUANTILES_MAX_ELEMENTS
from torchgauge.weights.symbols import SYMBOLS, is_exact

# Pieces do not depend on the number of workers: merged in order, they give the same result everywhere.
PIECE_BYTES = 16 << 20
# Small neighbours are read together, because every read has a fixed cost.
BATCH_BYTES = 2 << 20
BATCH_GAP_BYTES = 64 << 10
BATCH_PIECES = 512


@dataclass(frozen=True, slots=True)
class Gather:
    """Strided values: their shape, and strides in elements of `item` bytes, from the offset of the piece."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    item: int

    @property
    def span(self) -> int:
        """Bytes from the first value to the end of the last."""
        return (1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))) * self.item


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of a tensor's bytes that is read and tallied at once: `nbytes` from `offset` of `file`, whole elements.

    A compressed record (`deflated`) can only be read from its start, so its piece is the whole tensor, inflated in
    parts. `keeps_values`: the tensor is small enough to compute figures from its exact values.
    """

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


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """How the values of a tensor are read, or why they are `skipped`."""

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
class Batch:
    """Pieces that are read at once: a single piece, or small contiguous neighbours in one file."""

    pieces: tuple[Piece, ...]

    @property
    def offset(self) -> int:
        return self.pieces[0].offset

    @property
    def span(self) -> int:
        """Bytes of the file that are read, including the gaps between neighbours."""
        last = self.pieces[-1]
        return last.offset + last.span - self.offset


def plan_checkpoint(index: Index) -> list[TensorPlan]:
    """The tensors in file order, without those that are the same view of the same bytes as another one."""
    copies = same_views(index)
    file_numbers = {file: number for number, file in enumerate(index.files)}

    def position(plan: TensorPlan) -> tuple[int, int]:
        if not plan.pieces:
            return len(file_numbers), 0
        return file_numbers.get(plan.pieces[0].file, len(file_numbers)), plan.pieces[0].offset

    return sorted((plan_tensor(entry) for entry in index.entries if entry.name not in copies), key=position)


def same_views(index: Index) -> Mapping[str, str]:
    """Name -> the tensor that is the same view of the same bytes."""
    by_name = {entry.name: entry for entry in index.entries}

    def view(entry: Entry) -> tuple[object, ...]:
        return entry.spec, entry.file, entry.offset, entry.deflated

    return {
        entry.name: entry.shared_with
        for entry in index.entries
        if entry.shared_with in by_name and not entry.chunks and view(entry) == view(by_name[entry.shared_with])
    }


def plan_tensor(entry: Entry) -> TensorPlan:
    dtype = entry.spec.dtype
    if dtype not in SYMBOLS:
        return TensorPlan(entry, skipped=f"cannot read values of type {dtype}: unknown layout")
    if not entry.elements:
        return TensorPlan(entry)
    if entry.deflated is not None:
        deflated = entry.deflated
        if deflated.size > limits.INFLATION_RATIO * max(deflated.packed, 1):
            return TensorPlan(entry, skipped="its record inflates more than deflate can compress: possibly a zip bomb")
        if not is_dense(entry):
            return TensorPlan(entry, skipped="it is compressed and strided")
        return TensorPlan(entry, (_piece(entry, 0, entry.file, deflated.offset, entry.nbytes, deflated=deflated),))
    if entry.chunks:
        runs = [(chunk.file, chunk.offset, chunk.nbytes) for chunk in entry.chunks if chunk.offset is not None]
        if len(runs) < len(entry.chunks):
            return TensorPlan(entry, skipped="part of it is compressed")
        return TensorPlan(entry, tuple(_split(entry, runs)))
    if entry.offset is None:
        reason = "it is inside a compressed record" if entry.file else "no values are stored (meta device)"
        return TensorPlan(entry, skipped=reason)
    if is_dense(entry):
        return TensorPlan(entry, tuple(_split(entry, [(entry.file, entry.offset, entry.nbytes)])))
    if dtype in VALUES_PER_BYTE:
        return TensorPlan(entry, skipped="its packed values are strided")
    item, pieces = item_bytes(dtype), []
    for number, (at, box) in enumerate(_boxes(_dimensions(entry), item)):
        gather = Gather(tuple(size for _, size in box), tuple(step for step, _ in box), item)
        nbytes = item * prod(gather.shape)
        pieces.append(_piece(entry, number, entry.file, entry.offset + at * item, nbytes, gather))
    return TensorPlan(entry, tuple(pieces))


def is_dense(entry: Entry) -> bool:
    """Whether the distinct values fill one run of bytes, in any order of dimensions."""
    expected = 1
    for step, size in reversed(_dimensions(entry)):
        if step != expected:
            return False
        expected *= size
    return True


def _dimensions(entry: Entry) -> list[tuple[int, int]]:
    """(stride, size), the largest stride first; without expanded dimensions and those of size 1."""
    spec = entry.spec
    if spec.stride is None:
        return [(1, spec.numel)]
    return sorted(((t, n) for t, n in zip(spec.stride, spec.shape, strict=True) if t and n > 1), reverse=True)


def _split(entry: Entry, runs: Iterable[tuple[str, int, int]]) -> Iterator[Piece]:
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
    keeps_values = entry.elements <= EXACT_QUANTILES_MAX_ELEMENTS and not is_exact(dtype)
    return Piece(entry.name, number, file, offset, nbytes, dtype, entry.big_endian, gather, deflated, keeps_values)


def _boxes(dimensions: Sequence[tuple[int, int]], item: int) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Boxes whose span is at most `PIECE_BYTES`: the first element and the dimensions of each."""
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


def make_batches(pieces: Iterable[Piece]) -> Iterator[Batch]:
    """The pieces in order; small contiguous ones that are close together in a file form a batch."""
    batch: list[Piece] = []
    for piece in pieces:
        if batch:
            first, last = batch[0], batch[-1]
            gap = piece.offset - (last.offset + last.nbytes)
            if not (
                len(batch) < BATCH_PIECES
                and piece.is_plain
                and last.is_plain
                and piece.file == last.file
                and 0 <= gap <= BATCH_GAP_BYTES
                and piece.offset + piece.nbytes - first.offset <= BATCH_BYTES
            ):
                yield Batch(tuple(batch))
                batch = []
        batch.append(piece)
    if batch:
        yield Batch(tuple(batch))
