"""How the elements of a tensor lie in memory."""

from __future__ import annotations

from math import prod


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
