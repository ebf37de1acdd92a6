"""A row's figures of its values: of a packed tensor those after unpacking, since its codes are no weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Figures = Mapping[str, Any]

_VALUES = frozenset({"float64", "float32", "float16", "bfloat16"})


def value_figures(row: Figures) -> Figures:
    unpacked = row.get("dequantized")
    return {**row, **unpacked} if unpacked else row


def holds_codes(dtype: str, logical_elements: int | None) -> bool:
    """Stored are codes, which are no values without their scales; a wide float is a value whatever is beside it."""
    return bool(logical_elements) and dtype not in _VALUES


def quantization_of(row: Figures) -> Figures:
    """What other formats would do to the values; nothing for those that are quantized already."""
    is_packed = holds_codes(row.get("dtype", ""), row.get("logical_elements"))
    return {} if is_packed else row.get("quantization") or {}


def removable(row: Figures, error: str = "0.01") -> float | None:
    """The share of values that may go at a relative error of the whole."""
    share: float | None = ((value_figures(row).get("pruning") or {}).get("magnitude") or {}).get(error)
    return share
