"""Shape rules for ops whose meta kernel is slow or missing. A rule returns None where it does not apply.

A rule never reports an error: arguments that look wrong are left to torch's own kernel, for torch's message.
Results are `Spec`s (or tuples of them), the same that the real kernel's output would have, strides included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from torchgauge.capture.fake_tensor import Spec, Specs
from torchgauge.capture.opcall import Arguments
from torchgauge.facts.tensor import contiguous_stride

# One output, or several in order; None for one that the op leaves out, or where the rule does not know.
Result: TypeAlias = "Spec | Sequence[Result] | None"
Rule = Callable[[Arguments, Specs], Result]

RULES: dict[str, Rule] = {}


def shape_rule(*ops: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        for op in ops:
            if op in RULES:
                raise ValueError(f"'{op}' has a shape rule already")
            RULES[op] = rule
        return rule

    return register


# Memory layouts: which strides an output takes.


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
    """Images or volumes that torch takes for channels_last: strides in that order, gaps allowed."""
    rank = len(spec.shape)
    if rank not in (4, 5) or spec.stride[1] == 0 or 0 in spec.shape:
        return False
    least = 0
    for dim in (1, *range(rank - 1, 1, -1), 0):
        # With one channel and one pixel both layouts fit, and torch prefers the contiguous one.
        if spec.stride[dim] < least or (dim == 0 and least == spec.stride[1]):
            return False
        least = spec.stride[dim] * spec.shape[dim]
    return True


def channels_last_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    moved = contiguous_stride((shape[0], *shape[2:], shape[1]))
    return (moved[0], moved[-1], *moved[1:-1])


def preserved_stride(spec: Spec) -> tuple[int, ...] | None:
    """The strides of a new tensor that keeps the order of dimensions; None where the order is ambiguous."""
    if is_dense(spec):
        return spec.stride
    sized = [step for step, size in zip(spec.stride, spec.shape, strict=True) if size != 1]
    if 0 in spec.stride or 0 in spec.shape or len(set(sized)) < len(sized):
        return None
    stride, expected = list(spec.stride), 1
    # Dimensions of size 1 sort by their stride as well, later ones inside earlier ones.
    for dim in sorted(range(len(spec.shape)), key=lambda i: (spec.stride[i], -i)):
        stride[dim] = expected
        expected *= spec.shape[dim]
    return tuple(stride)
