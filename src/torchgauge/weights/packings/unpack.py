"""Dequantize packed parameters, and compute the statistics of their values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchgauge.checkpoint import Entry
from torchgauge.weights.packings.packing import LAYOUTS, Packing, ReadBytes
from torchgauge.weights.passes import tally_bytes
from torchgauge.weights.pruning import unstructured_pruning
from torchgauge.weights.statistics import STORAGE_FIGURES, value_statistics
from torchgauge.weights.tally import Tally, empty_tally, merge_tallies


class Unpacked(NamedTuple):
    """A packed tensor after one pass over its values."""

    packing: Packing
    tally: Tally
    code_counts: NDArray[np.int64]


def find_packing(entry: Entry, tensors: Mapping[str, Entry], read: ReadBytes) -> Packing | None:
    """How the tensor is packed; None if it is not, or in an unknown layout. `tensors` contains its scales."""
    if entry.shared_with is not None or not entry.logical_elements or not _is_contiguous(entry):
        return None
    packings = (layout(entry, _ContiguousTensors(tensors), read) for layout in LAYOUTS.values())
    return next((packing for packing in packings if packing is not None), None)


def _is_contiguous(entry: Entry) -> bool:
    return entry.offset is not None and entry.spec.stride is None


class _ContiguousTensors(Mapping[str, Entry]):
    """The tensors that are contiguous in one file: layouts read parts of them. A view, because there may be many."""

    def __init__(self, tensors: Mapping[str, Entry]) -> None:
        self._tensors = tensors

    def __getitem__(self, name: str) -> Entry:
        entry = self._tensors[name]
        if not _is_contiguous(entry):
            raise KeyError(name)
        return entry

    def __iter__(self) -> Iterator[str]:
        return (name for name, entry in self._tensors.items() if _is_contiguous(entry))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def unpack(entry: Entry, tensors: Mapping[str, Entry], read: ReadBytes) -> Unpacked | None:
    """Tally the dequantized values; None if the tensor is not packed in a known layout."""
    packing = find_packing(entry, tensors, read)
    if packing is None:
        return None
    total = empty_tally("float32")
    code_counts = np.zeros(1 << packing.bits, np.int64)
    for block in packing.blocks():
        values = np.ascontiguousarray(block.values, np.float32)
        total = merge_tallies(total, tally_bytes(values.view(np.uint8), "float32"))
        code_counts += np.bincount(block.codes, minlength=len(code_counts))
    return Unpacked(packing, total, code_counts)


def dequantized_figures(unpacked: Unpacked) -> dict[str, Any]:
    """The additional figures of a packed tensor's row."""
    statistics = value_statistics(unpacked.tally)
    total = int(unpacked.code_counts.sum())
    shares = [count / total for count in unpacked.code_counts.tolist() if count]
    return {
        "packing": {
            "layout": unpacked.packing.layout,
            "bits": unpacked.packing.bits,
            "shape": list(unpacked.packing.shape),
            "is_transposed": unpacked.packing.is_transposed,
        },
        "dequantized": {
            **{key: value for key, value in statistics.items() if key not in STORAGE_FIGURES},
            "pruning": unstructured_pruning(unpacked.tally),
        },
        "code_counts": unpacked.code_counts.tolist(),
        # Bits of information per code; + 0.0 turns the −0 of a single code into 0.
        "code_entropy_bits": -math.fsum(share * math.log2(share) for share in shares) + 0.0 if shares else None,
    }
