"""How a tensor lies in its file and in memory: alignment, divisibility, order of access, and what zstd makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from math import prod
from typing import Any

from torchgauge.checkpoint.index import Entry
from torchgauge.facts import TensorSpec
from torchgauge.facts.strides import contiguous_stride

# Vector loads of a GPU thread, a cache line of a CPU, a cache line of a GPU.
ROW_BOUNDARIES = (16, 64, 128)
# Beyond a page nothing gains from alignment.
PAGE = 4096
# Tensor cores work on tiles of 8 to 128 elements a side.
LARGEST_TILE = 128
CACHE_LINE = 64
# What tools use when nobody chooses; higher levels gain a few percent on weights.
ZSTD_LEVEL = 3
ZSTD_ABSENT = "the package zstandard is not installed (pip install torchgauge[zstd])"


def alignment(entry: Entry) -> dict[str, Any]:
    """Plain JSON.

    offset_alignment    the largest power of two, up to a page, that divides the offset in the file; null if spread
    row_bytes           from one row (an index of the first dimension) to the next in memory
    rows_aligned        whether rows start on such boundaries if the first one does
    dimensions          sizes and the power of two, up to a tensor-core tile, that divides each
    stride_class        contiguous, transposed (dense in another order), gaps, expanded, overlapping
    memory_order        dimensions from the slowest to the fastest
    step_bytes          between consecutive elements in logical order
    cache_lines         touched by a run along the last dimension, and by as many elements if they were contiguous
    """
    spec = entry.spec
    strides = spec.stride if spec.stride is not None else contiguous_stride(spec.shape)
    row_bytes = _row_bytes(spec, strides)
    kind = stride_class(spec.shape, strides)
    return {
        "offset_alignment": None if entry.offset is None else _power_of_two(entry.offset, PAGE),
        "row_bytes": row_bytes,
        "rows_aligned": None if row_bytes is None else {str(size): row_bytes % size == 0 for size in ROW_BOUNDARIES},
        "dimensions": [{"size": size, "divisible_by": _power_of_two(size, LARGEST_TILE)} for size in spec.shape],
        "contiguous": kind == "contiguous",
        "stride_class": kind,
        "memory_order": sorted(range(len(strides)), key=lambda dim: -strides[dim]),
        **_locality(spec, strides),
    }


def stride_class(shape: Sequence[int], strides: Sequence[int]) -> str:
    """Dimensions of size one lie nowhere in particular, and a tensor without elements is contiguous."""
    real = [(size, step) for size, step in zip(shape, strides, strict=True) if size != 1]
    if not prod(shape) or [step for _, step in real] == list(contiguous_stride(tuple(size for size, _ in real))):
        return "contiguous"
    if any(step == 0 for _, step in real):
        return "expanded"
    reach, kind = 1, "transposed"
    for size, step in sorted(real, key=lambda pair: pair[1]):
        if step < reach:
            return "overlapping"
        if step > reach:
            kind = "gaps"
        reach = step * size
    return kind


def zstd(sample: bytes, itemsize: int) -> dict[str, Any] | None:
    """How many times smaller zstd makes the sample, as it is and with the bytes of its elements regrouped by
    significance; None for an empty sample or where the package is absent (`ZSTD_ABSENT`)."""
    if not sample or find_spec("zstandard") is None:
        return None
    import zstandard

    compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
    return {
        "plain": len(sample) / len(compressor.compress(sample)),
        "shuffled": len(sample) / len(compressor.compress(shuffled(sample, itemsize))),
        "sample_bytes": len(sample),
        "level": ZSTD_LEVEL,
    }


def shuffled(sample: bytes, itemsize: int) -> bytes:
    """First bytes first, then the second ones, and so on; what is no whole element stays at the end."""
    whole = len(sample) - len(sample) % itemsize
    return b"".join(sample[byte:whole:itemsize] for byte in range(itemsize)) + sample[whole:]


def _power_of_two(number: int, most: int) -> int:
    return most if number == 0 else min(number & -number, most)


def _row_bytes(spec: TensorSpec, strides: Sequence[int]) -> int | None:
    """Null where there is no second row."""
    return strides[0] * spec.itemsize if len(spec.shape) > 1 and spec.shape[0] > 1 else None


def _locality(spec: TensorSpec, strides: Sequence[int]) -> dict[str, Any]:
    if not spec.numel or not spec.shape:
        return {"step_bytes": None, "cache_lines": None}
    # The last dimension that moves at all is the one that consecutive elements differ in.
    dim = max((dim for dim, size in enumerate(spec.shape) if size > 1), default=len(spec.shape) - 1)
    step = strides[dim] * spec.itemsize
    count = spec.shape[dim]
    touched, least = _lines(count, step, spec.itemsize), _lines(count, spec.itemsize, spec.itemsize)
    return {"step_bytes": step, "cache_lines": {"touched": touched, "contiguous": least}}


def _lines(count: int, step: int, itemsize: int) -> int:
    """Lines that a run touches whose first element starts one."""
    if step >= CACHE_LINE:
        return count
    return -(-((count - 1) * step + itemsize) // CACHE_LINE)
