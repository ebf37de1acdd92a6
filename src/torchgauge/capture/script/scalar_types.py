"""TorchScript knows types, layouts and memory formats by their numbers."""

from __future__ import annotations

from typing import Any

import torch

# The numbers are part of the file format, so they do not change; types that this torch lacks are left out.
_NAMES = (
    "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex32", "complex64",
    "complex128", "bool", "qint8", "quint8", "qint32", "bfloat16", "quint4x2", "quint2x4", "bits1x8", "bits2x4",
    "bits4x2", "bits8", "bits16", "float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz", "uint16",
    "uint32", "uint64",
)  # fmt: skip
_DTYPES = {number: getattr(torch, name) for number, name in enumerate(_NAMES) if hasattr(torch, name)}
_NUMBERS = {dtype: number for number, dtype in _DTYPES.items()}
_LAYOUTS = {torch.strided: 0, torch.sparse_coo: 1, torch.sparse_csr: 2}


def dtype_of(number: int | None) -> torch.dtype | None:
    return None if number is None else _DTYPES[number]


def plain(value: Any) -> Any:
    """A value as TorchScript holds it."""
    if isinstance(value, torch.dtype):
        return _NUMBERS[value]
    if isinstance(value, torch.layout):
        return _LAYOUTS[value]
    return value
