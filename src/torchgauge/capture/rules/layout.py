"""Memory layouts: which strides an output takes."""

from __future__ import annotations

from torchgauge.capture.ghost import Spec, contiguous_stride, is_contiguous


def is_dense(spec: Spec) -> bool:
    """Non-overlapping and without gaps, in any order of dimensions."""
    expected = 1
    for step, size in sorted(zip(spec.stride, spec.shape, strict=True)):
        if size == 1:
            continue
        if size == 0 or step != expected:
            return False
        expected *= size
    return True


def is_channels_last(spec: Spec) -> bool:
    """Images or volumes with the channels innermost, and not contiguous as well."""
    if len(spec.shape) not in (4, 5):
        return False
    return spec.stride == channels_last_stride(spec.shape) and not is_contiguous(spec.shape, spec.stride)


def channels_last_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    moved = contiguous_stride((shape[0], *shape[2:], shape[1]))
    return (moved[0], moved[-1], *moved[1:-1])
