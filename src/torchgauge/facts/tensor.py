"""Tensors without their values: shape, type, and layout in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from torchgauge.nested import find_all

ITEM_BITS: Mapping[str, int] = {
    "float64": 64, "float32": 32, "float16": 16, "bfloat16": 16, "complex128": 128, "complex64": 64, "complex32": 32,
    "float8_e4m3fn": 8, "float8_e4m3fnuz": 8, "float8_e5m2": 8, "float8_e5m2fnuz": 8, "float8_e8m0fnu": 8,
    "float4_e2m1fn_x2": 8, "int64": 64, "int32": 32, "int16": 16, "int8": 8, "uint64": 64, "uint32": 32,
    "uint16": 16, "uint8": 8, "bool": 8, "qint8": 8, "quint8": 8, "qint32": 32, "quint4x2": 8, "quint2x4": 8,
    "bits8": 8, "bits16": 16,
}  # fmt: skip


@lru_cache(256)
def item_bytes(dtype: str) -> int:
    """Types of later torch releases that the table lacks carry their width in their name."""
    bits = ITEM_BITS.get(dtype) or int("".join(c for c in dtype.split("_")[0] if c.isdigit()) or 8)
    return max(bits // 8, 1)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor without its values; `stride` is None for a contiguous one.

    A sparse tensor has `stored` elements, and `index_bytes` that say where they are; None for a dense one."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    stride: tuple[int, ...] | None = None
    stored: int | None = None
    index_bytes: int = 0

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def itemsize(self) -> int:
        return item_bytes(self.dtype)

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * item_bytes(self.dtype) if self.stored is None else self.distinct_bytes

    @property
    def is_sparse(self) -> bool:
        return self.stored is not None

    @property
    def stored_numel(self) -> int:
        """Elements that are worked on; for a sparse tensor, those that it stores."""
        return self.numel if self.stored is None else self.stored

    @property
    def distinct_numel(self) -> int:
        """Elements that exist in memory: an expanded dimension counts once, overlapping windows share theirs."""
        if self.stored is not None:
            return self.stored
        return prod(self.shape) if self.stride is None else distinct_elements(self.shape, self.stride)

    @property
    def distinct_bytes(self) -> int:
        return self.distinct_numel * self.itemsize + self.index_bytes

    @property
    def is_floating(self) -> bool:
        return self.dtype.startswith(("float", "bfloat"))

    @property
    def is_complex(self) -> bool:
        return self.dtype.startswith("complex")

    @property
    def is_arithmetic(self) -> bool:
        """Floating or complex: work on it counts as flops."""
        return self.dtype.startswith(("float", "bfloat", "complex"))

    @property
    def is_quantized(self) -> bool:
        """Integers that encode floating numbers (`qint8`, `quint4x2`): work on them is not flops."""
        return self.dtype.startswith(("qint", "quint"))


def tensor_specs(value: object) -> Iterator[TensorSpec]:
    """The tensor specs in a nested structure, in order."""
    return find_all(value, TensorSpec)


def contiguous_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    stride = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        stride[i] = stride[i + 1] * max(shape[i + 1], 1)
    return tuple(stride)


def is_contiguous(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """torch's definition: dimensions of size 1 may have any stride, and so may all dimensions of an empty tensor."""
    if 0 in shape:
        return True
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if size != 1:
            if step != expected:
                return False
            expected *= size
    return True


def distinct_elements(shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Elements of memory that a tensor touches: a dimension expanded with stride 0 counts once, and windows that
    overlap (`unfold`) share their elements.

    From the smallest step up, the places form evenly spaced runs, each run of which is one element of the next:
    windows of 3 at steps of 2 over a row are one run of 1-element steps, those over rows a run of such runs. Where a
    step fits into no run, which only `as_strided` makes, it is the smaller of two upper bounds."""
    if 0 in shape:
        return 0
    steps = sorted((abs(step), size) for size, step in zip(shape, stride, strict=True) if size > 1 and step)
    runs: list[tuple[int, int]] = []
    extent = 1
    for step, size in steps:
        gap, count = runs[-1] if runs else (1, 1)
        if step >= extent and step != gap * count:
            runs.append((step, size))
        elif step % gap == 0:
            runs[-1:] = [(gap, count + (size - 1) * (step // gap))]
        else:
            whole = 1 + sum(step * (size - 1) for step, size in steps)
            return min(prod(size for _, size in steps), whole)
        extent += step * (size - 1)
    return prod(count for _, count in runs)


def windowed_elements(size: int, windows: int, kernel: int, step: int, dilation: int = 1, padding: int = 0) -> int:
    """Elements of a dimension that sliding windows touch, padding left out: a 1-wide kernel with a step of 2 every
    second one."""
    # Tap t of the windows touches t·dilation − padding and every step-th place after it: by remainder of the step,
    # runs of `windows` places that may overlap.
    runs: dict[int, list[int]] = {}
    for tap in range(kernel):
        quotient, remainder = divmod(tap * dilation - padding, step)
        runs.setdefault(remainder, []).append(quotient)
    touched = 0
    for remainder, starts in runs.items():
        reached, last = 0, -(-(size - remainder) // step)  # places at or beyond `last` lie behind the end
        for start in sorted(starts):
            end = min(start + windows, last)
            touched += max(end - max(start, reached), 0)
            reached = max(reached, end)
    return touched
