"""The figures of a tensor's values, from its row: of a packed tensor those after dequantization."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Figures = Mapping[str, Any]

# Types that always hold values, never the codes of a packing.
_VALUE_DTYPES = frozenset({"float64", "float32", "float16", "bfloat16"})


def holds_codes(dtype: str, logical_elements: int | None) -> bool:
    """Whether the stored elements are codes, which mean nothing without their scales."""
    return bool(logical_elements) and dtype not in _VALUE_DTYPES


def value_figures(row: Figures) -> Figures:
    dequantized = row.get("dequantized")
    return {**row, **dequantized} if dequantized else row


def quantization_of(row: Figures) -> Figures:
    """What quantization would do to the values; empty if the tensor is already quantized."""
    is_packed = holds_codes(row.get("dtype", ""), row.get("logical_elements"))
    return {} if is_packed else row.get("quantization") or {}


def removable(row: Figures, error: str = "0.01") -> float | None:
    """The share of values that magnitude pruning can remove at this relative error."""
    share: float | None = ((value_figures(row).get("pruning") or {}).get("magnitude") or {}).get(error)
    return share
