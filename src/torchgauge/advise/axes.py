"""Which dimension of one tensor is which of another: by its step in memory, through views and ops that keep shapes."""

from __future__ import annotations

from torchgauge.facts import TensorSpec, contiguous_stride


def same_axis(axis: int, of: TensorSpec, other: TensorSpec) -> int | None:
    """The dimension of `other` that is dimension `axis` of `of`, where both are views of the same memory; None where it
    was split, joined with others, or cannot be told."""
    steps, others = ((spec.stride or contiguous_stride(spec.shape)) for spec in (of, other))
    found = [at for at, step in enumerate(others) if (step, other.shape[at]) == (steps[axis], of.shape[axis])]
    return found[0] if len(found) == 1 and of.shape[axis] > 1 else None
