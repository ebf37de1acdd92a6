"""How wide the line is along which so much flows."""

from __future__ import annotations

from math import log2


def wire_width(nbytes: int) -> float:
    """From 1 for a kibibyte to 5 for a gibibyte, with the logarithm: sizes differ by orders of magnitude."""
    return min(max(log2(max(nbytes, 1)) / 5 - 1, 1.0), 5.0)
