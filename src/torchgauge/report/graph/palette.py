"""Colours and widths of a graph: one colour for each kind of op, the same as on the page; light, dark and in print."""

from __future__ import annotations

from collections.abc import Mapping
from math import log2

CATEGORY_COLORS: Mapping[str, int] = {
    "matmul": 0, "convolution": 1, "attention": 2, "normalization": 3, "activation": 4, "elementwise": 5, "softmax": 6,
    "pooling": 7, "embedding": 8, "recurrent": 2, "reduction": 6, "loss": 8, "indexing": 8, "resize": 7, "fft": 2,
    "sort": 6,
}  # fmt: skip
OTHER = 9

LIGHT: Mapping[str, str] = {
    "ink": "#1b1e23", "faint": "#626a75", "paper": "#ffffff", "panel": "#f6f7f8", "line": "#c9ced5", "wire": "#8b939d",
    "c0": "#4477aa", "c1": "#e08b5f", "c2": "#33884a", "c3": "#a5539a", "c4": "#46b3a0", "c5": "#c9b23f",
    "c6": "#c65c6e", "c7": "#6cc0de", "c8": "#8f8f3d", "c9": "#9aa0a8",
}  # fmt: skip
DARK: Mapping[str, str] = {
    "ink": "#e4e7eb", "faint": "#98a1ad", "paper": "#14171b", "panel": "#1c2025", "line": "#3d444d", "wire": "#7d8590",
    "c0": "#6b9fd4", "c1": "#e59c73", "c2": "#5cb374", "c3": "#c17fb8", "c4": "#5cc4b1", "c5": "#d6c25a",
    "c6": "#da7f8f", "c7": "#7fcbe6", "c8": "#b0b05a", "c9": "#868d96",
}  # fmt: skip


def color_of(category: str) -> str:
    return f"c{CATEGORY_COLORS.get(category, OTHER)}"


def wire_width(nbytes: int) -> float:
    """From 1 for a kibibyte to 5 for a gibibyte, with the logarithm: sizes differ by orders of magnitude."""
    return min(max(log2(max(nbytes, 1)) / 5 - 1, 1.0), 5.0)
