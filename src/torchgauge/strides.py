"""How the elements of a tensor lie in memory."""

from __future__ import annotations


def contiguous_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    stride = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        stride[i] = stride[i + 1] * max(shape[i + 1], 1)
    return tuple(stride)


def is_contiguous(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """As torch sees it: dimensions of size 1 may have any stride, and so may all where there are no elements."""
    if 0 in shape:
        return True
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if size != 1:
            if step != expected:
                return False
            expected *= size
    return True
