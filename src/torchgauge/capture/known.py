"""How much tensor content a run may know: what is computed beside fake tensors takes real memory and real time."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from torchgauge.capture.fake_tensor import FakeTensor, Storage

# Of one tensor. Integers and truth values are masks and positions; floats only what the forward itself makes.
LIMIT = 1 << 22
FLOAT_LIMIT = 1 << 20
# Of all that are alive at a time: as much as sixteen of the largest.
HELD_BYTES = 1 << 29
# Multiply-accumulates of one op: kernels of convolutions and products may unfold their inputs into as many numbers.
OP_MACS = 1 << 26
# Elements read and written and multiply-accumulates of a whole run: some seconds.
WORK = 1 << 31


class Knowledge:
    """The account of one run; what it cannot afford is not known, as if it came from data."""

    def __init__(self) -> None:
        self.held_bytes = 0
        self.work = 0

    def has_room(self, elements: int, dtype: torch.dtype) -> bool:
        is_float = dtype.is_floating_point or dtype.is_complex
        fits = self.held_bytes + elements * dtype.itemsize <= HELD_BYTES
        return fits and elements <= (FLOAT_LIMIT if is_float else LIMIT)

    def affords(self, read: Iterable[FakeTensor], made: Iterable[FakeTensor], macs: int = 0) -> bool:
        """Whether an op may be computed for real; its work is added to the account if so. An expanded tensor is small
        in memory and as large as its shape for whoever reads it."""
        sizes = [fake.numel() for fake in read]
        made = list(made)
        work = macs + sum(sizes) + sum(fake.numel() for fake in made)
        room = all(self.has_room(fake.numel(), fake.dtype) for fake in made)
        if not room or max(sizes, default=0) > LIMIT or macs > OP_MACS or self.work + work > WORK:
            return False
        self.work += work
        return True

    def hold(self, storage: Storage, content: torch.Tensor) -> None:
        """Count the content of a storage as long as the storage lives."""
        if storage.content is None:
            storage.content = _Hold(self, content.numel() * content.itemsize)


class _Hold:
    __slots__ = ("_knowledge", "_nbytes")

    def __init__(self, knowledge: Knowledge, nbytes: int) -> None:
        self._knowledge, self._nbytes = knowledge, nbytes
        knowledge.held_bytes += nbytes

    def __del__(self) -> None:
        self._knowledge.held_bytes -= self._nbytes
