"""A run of a tensor's bytes that is read and tallied in one go: what threads and cluster workers are handed."""

from __future__ import annotations

from dataclasses import dataclass

from torchgauge.checkpoint.index import Deflated

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
