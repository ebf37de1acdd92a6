"""The tensors of an archive: on the meta device, small integers with their content."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NotRequired, TypedDict

import torch

from torchgauge.source.archive_records import ArchiveRecords

# The numbers of the format, which are not those of torch.
_DTYPES = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64",
    9: "complex32", 10: "complex64", 11: "complex128", 12: "bool", 13: "bfloat16", 28: "uint16", 29: "float8_e4m3fn",
    30: "float8_e5m2", 31: "float8_e4m3fnuz", 32: "float8_e5m2fnuz", 33: "float8_e8m0fnu", 34: "uint32", 35: "uint64",
}  # fmt: skip
CONTENT_LIMIT = 4 << 20  # bytes
ALL_CONTENT_LIMIT = 256 << 20  # bytes of all tensors: many may lie in one record

# The values of a tensor by its name in the model; None where they are not known.
Values = Callable[[str], torch.Tensor | None]


# An object with one member, named after its kind.
Tagged = dict[str, Any]


class TensorMeta(TypedDict):
    """What the format says of a tensor."""

    dtype: int
    sizes: list[Tagged]
    strides: list[Tagged]
    storage_offset: Tagged
    requires_grad: NotRequired[bool]


class StoredEntry(TypedDict):
    """Where a tensor is stored in the archive."""

    path_name: str
    use_pickle: NotRequired[bool]
    tensor_meta: NotRequired[TensorMeta]


def dtype_of(number: int) -> torch.dtype:
    return getattr(torch, _DTYPES[number])


def size_of(entry: Tagged) -> int:
    """A size; of a symbolic one what it was when the program was exported."""
    value = entry["as_int"] if "as_int" in entry else (entry["as_expr"].get("hint") or {}).get("as_int")
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"the size {value}")
    return value


class StoredTensors:
    """Tensors by their name in the model; one record at one place is one tensor, however many names it has."""

    def __init__(
        self,
        records: ArchiveRecords | None,
        weights: dict[str, StoredEntry],
        constants: dict[str, StoredEntry],
        *,
        values: Values | None = None,
    ) -> None:
        self._records = records
        self._values = values
        self._entries = {name: ("data/weights/", entry) for name, entry in weights.items()}
        self._entries |= {name: ("data/constants/", entry) for name, entry in constants.items()}
        self._made: dict[str, torch.Tensor] = {}
        self._content_bytes = 0

    def get(self, name: str, described: TensorMeta, *, is_parameter: bool) -> torch.Tensor:
        """`described` is what the graph says of the tensor, for archives that say it nowhere else."""
        folder, entry = self._entries.get(name, ("", None))
        meta = (entry.get("tensor_meta") if entry else None) or described
        record = folder + entry["path_name"] if entry and not entry.get("use_pickle") else ""
        key = f"{record or name} {meta['sizes']} {meta.get('strides')} {meta.get('storage_offset')}"
        if key not in self._made:
            tensor = self._values(name) if self._values else None
            tensor = self._make(record, meta) if tensor is None else tensor
            wants_grad = is_parameter and bool(meta.get("requires_grad")) and tensor.dtype.is_floating_point
            self._made[key] = torch.nn.Parameter(tensor, wants_grad) if is_parameter else tensor
        return self._made[key]

    def _make(self, record: str, meta: TensorMeta) -> torch.Tensor:
        shape = tuple(map(size_of, meta["sizes"]))
        stride = tuple(map(size_of, meta["strides"]))
        dtype = dtype_of(meta["dtype"])
        content = None if dtype.is_floating_point or dtype.is_complex else self._content(record)
        # With a stride of 0 a tensor may claim any size, whatever its record.
        nbytes = prod(shape) * dtype.itemsize
        if content and nbytes <= min(CONTENT_LIMIT, ALL_CONTENT_LIMIT - self._content_bytes):
            self._content_bytes += nbytes
            offset = size_of(meta["storage_offset"])
            flat = torch.frombuffer(bytearray(content), dtype=dtype)
            return flat.as_strided(shape, stride, offset).clone()
        return torch.empty_strided(shape, stride, dtype=dtype, device="meta")

    def _content(self, record: str) -> bytes | None:
        if self._records is None or not record or self._records.size(record) > CONTENT_LIMIT:
            return None
        return self._records.read(record, CONTENT_LIMIT)
