"""Multiply-accumulates of the parts that models are made of, by the textbook."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod


def linear(rows: int, inputs: int, outputs: int) -> int:
    return rows * inputs * outputs


def convolution(positions: int, inputs: int, outputs: int, kernel: Sequence[int], groups: int = 1) -> int:
    """`positions`: output positions of all images together; of the input for a transposed convolution."""
    return positions * inputs * outputs * prod(kernel) // groups


def attention(batch: int, heads: int, queries: int, keys: int, head_size: int) -> int:
    """The scores and the weighted sum of the values; a causal mask saves nothing by definition."""
    return 2 * batch * heads * queries * keys * head_size


def convolved(size: int, kernel: int, stride: int = 1, padding: int = 0, dilation: int = 1) -> int:
    """The length that a convolution leaves of a dimension."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def transposed(
    size: int, kernel: int, stride: int = 1, padding: int = 0, dilation: int = 1, output_padding: int = 0
) -> int:
    """The length that a transposed convolution makes of a dimension."""
    return (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + output_padding + 1
