"""What is known of a tensor without its values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from torchgauge.facts.strides import distinct_elements

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
    """What is known of a tensor without its values; `stride` is None for a contiguous one.

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
        """Elements that are worked on: of a sparse tensor those that it stores."""
        return self.numel if self.stored is None else self.stored

    @property
    def distinct_numel(self) -> int:
        """Elements that exist in memory: an expanded dimension counts once, overlapping windows share theirs."""
        if self.stride is None or self.is_sparse:
            return self.stored_numel
        return distinct_elements(self.shape, self.stride)

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
        """Integers that stand for floating numbers (`qint8`, `quint4x2`): work on them is not flops."""
        return self.dtype.startswith(("qint", "quint"))


def tensor_specs(value: object) -> Iterator[TensorSpec]:
    """The tensor specs in a nested structure, in order."""
    if isinstance(value, TensorSpec):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensor_specs(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensor_specs(item)
