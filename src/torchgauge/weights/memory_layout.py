"""The layout of a tensor in its file and in memory: alignment, divisibility, strides, and zstd compression."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from math import prod
from typing import TYPE_CHECKING

from torchgauge.checkpoint import Entry
from torchgauge.facts.tensor import contiguous_stride

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Alignment, Lines

# Vector loads of a GPU thread, a cache line of a CPU, a cache line of a GPU.
ROW_BOUNDARIES = (16, 64, 128)
# Alignment beyond a page gains nothing.
PAGE_BYTES = 4096
# Tensor cores work on tiles of 8 to 128 elements per side.
MAX_TILE = 128
CACHE_LINE_BYTES = 64
# The default of the zstd tools; higher levels gain a few percent on weights.
ZSTD_LEVEL = 3
ZSTD_ABSENT = "the package zstandard is not installed (pip install torchgauge[zstd])"


def alignment(entry: Entry) -> Alignment:
    """The `alignment` member of the JSON document.

    offset_alignment    the largest power of two, up to a page, that divides the file offset; null if not contiguous
    row_bytes           from one row (index of the first dimension) to the next in memory; null without a second row
    rows_aligned        whether rows start on these boundaries if the first one does
    dimensions          each size, and the largest power of two, up to a tensor-core tile, that divides it
    stride_class        contiguous, transposed (dense in another order), gaps, expanded, overlapping
    memory_order        dimensions from the slowest to the fastest
    step_bytes          between consecutive elements in logical order
    cache_lines         touched by a run along the last dimension, and by a contiguous run of the same length
    """
    spec = entry.spec
    shape, itemsize = spec.shape, spec.itemsize
    strides = spec.stride if spec.stride is not None else contiguous_stride(shape)
    row_bytes = strides[0] * itemsize if len(shape) > 1 and shape[0] > 1 else None
    kind = stride_class(shape, strides)
    step: int | None = None
    cache_lines: Lines | None = None
    if spec.numel and shape:
        # Consecutive elements differ in the last dimension with more than one index.
        dim = max((dim for dim, size in enumerate(shape) if size > 1), default=len(shape) - 1)
        step = strides[dim] * itemsize
        touched, contiguous = _lines(shape[dim], step, itemsize), _lines(shape[dim], itemsize, itemsize)
        cache_lines = {"touched": touched, "contiguous": contiguous}
    return {
        "offset_alignment": None if entry.offset is None else _power_of_two(entry.offset, PAGE_BYTES),
        "row_bytes": row_bytes,
        "rows_aligned": None if row_bytes is None else {str(size): row_bytes % size == 0 for size in ROW_BOUNDARIES},
        "dimensions": [{"size": size, "divisible_by": _power_of_two(size, MAX_TILE)} for size in shape],
        "contiguous": kind == "contiguous",
        "stride_class": kind,
        "memory_order": sorted(range(len(strides)), key=lambda dim: -strides[dim]),
        "step_bytes": step,
        "cache_lines": cache_lines,
    }


def _power_of_two(number: int, most: int) -> int:
    return most if number == 0 else min(number & -number, most)


def _lines(count: int, step: int, itemsize: int) -> int:
    """Cache lines touched by a run that starts at the beginning of one."""
    return count if step >= CACHE_LINE_BYTES else -(-((count - 1) * step + itemsize) // CACHE_LINE_BYTES)


def stride_class(shape: Sequence[int], strides: Sequence[int]) -> str:
    """Strides of dimensions of size 1 do not matter; a tensor without elements is contiguous."""
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


def zstd_ratios(sample: bytes, itemsize: int) -> dict[str, float | None] | None:
    """The compression ratio of the sample, unchanged and with bytes grouped by significance; None for an empty sample
    or without the package (`ZSTD_ABSENT`)."""
    if not sample or find_spec("zstandard") is None:
        return None
    import zstandard

    compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
    return {
        "plain": len(sample) / len(compressor.compress(sample)),
        "shuffled": len(sample) / len(compressor.compress(shuffle_bytes(sample, itemsize))),
        "sample_bytes": len(sample),
        "level": ZSTD_LEVEL,
    }


def shuffle_bytes(sample: bytes, itemsize: int) -> bytes:
    """The first byte of every element, then the second, and so on; an incomplete element stays at the end."""
    whole = len(sample) - len(sample) % itemsize
    return b"".join(sample[byte:whole:itemsize] for byte in range(itemsize)) + sample[whole:]
