"""Packed parameters: what their codes stand for, and the statistics of those values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchgauge.checkpoint.index import Entry
from torchgauge.weights import pruning, statistics, tally
from torchgauge.weights.packings import LAYOUTS, Names, Packing, Read
from torchgauge.weights.tally import Tally

# Figures of how values are stored: dequantized ones are not stored.
_OF_STORAGE = ("entropy_bits", "entropy_symbol_bits", "compressibility")


class Unpacked(NamedTuple):
    """What a pass over the values of a packed tensor found."""

    packing: Packing
    tally: Tally
    code_counts: NDArray[np.int64]


class _Plain(Mapping[str, Entry]):
    """Those tensors that lie plainly in one file: only of them can parts be read."""

    def __init__(self, names: Names) -> None:
        self._names = names

    def __getitem__(self, name: str) -> Entry:
        entry = self._names[name]
        if not _is_plain(entry):
            raise KeyError(name)
        return entry

    def __iter__(self) -> Iterator[str]:
        return (name for name, entry in self._names.items() if _is_plain(entry))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _is_plain(entry: Entry) -> bool:
    return entry.offset is not None and entry.spec.stride is None


def packing_of(entry: Entry, names: Names, read: Read) -> Packing | None:
    """How the tensor is packed; None where it is not, or in no way that is known. `names` has its scales."""
    if entry.shared_with is not None or not entry.logical_elements or not _is_plain(entry):
        return None
    plain = _Plain(names)
    return next((found for layout in LAYOUTS.values() if (found := layout(entry, plain, read)) is not None), None)


def dequantized(entry: Entry, names: Names, read: Read) -> Iterator[NDArray[np.float32]] | None:
    """The values of a packed tensor in bounded blocks, flat, in the order of its codes."""
    packing = packing_of(entry, names, read)
    return None if packing is None else (block.values for block in packing.blocks())


def unpack(entry: Entry, names: Names, read: Read) -> Unpacked | None:
    """One pass over the values; None where the tensor is not packed in a known way."""
    packing = packing_of(entry, names, read)
    if packing is None:
        return None
    from torchgauge.weights.kernels import tally_bytes

    whole = tally.empty("float32")
    counts = np.zeros(1 << packing.bits, np.int64)
    for block in packing.blocks():
        values = np.ascontiguousarray(block.values, np.float32)
        whole = tally.merge(whole, tally_bytes(values.view(np.uint8), "float32"))
        counts += np.bincount(block.codes, minlength=len(counts))
    return Unpacked(packing, whole, counts)


def unpacked_figures(unpacked: Unpacked) -> dict[str, Any]:
    """What the row of a packed tensor has more than others."""
    found = statistics.figures(unpacked.tally)
    return {
        "packing": {
            "layout": unpacked.packing.layout,
            "bits": unpacked.packing.bits,
            "shape": list(unpacked.packing.shape),
            "is_transposed": unpacked.packing.is_transposed,
        },
        "dequantized": {
            **{key: value for key, value in found.items() if key not in _OF_STORAGE},
            "pruning": pruning.unstructured(unpacked.tally),
        },
        "code_counts": unpacked.code_counts.tolist(),
        "code_entropy_bits": _entropy_bits(unpacked.code_counts),
    }


def _entropy_bits(counts: NDArray[np.int64]) -> float | None:
    """How many of a code's bits say something."""
    total = int(counts.sum())
    shares = [count / total for count in counts.tolist() if count]
    return -math.fsum(share * math.log2(share) for share in shares) + 0.0 if shares else None
