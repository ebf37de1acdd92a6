"""Eigenvalues of symmetric tridiagonal matrices: a few of them, by bisection."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.kernels.jit import compiled, entry

Vector = NDArray[np.float64]


@entry
def eigenvalue(diagonal: Vector, beside: Vector, index: int) -> float:
    """The one that `index` others are below, to the last bits of the largest magnitude."""
    bound = reach(diagonal, beside)
    low, high = -bound, bound
    while high - low > 1e-15 * bound:
        middle = (low + high) / 2
        if _count_below(diagonal, beside, middle) > index:
            high = middle
        else:
            low = middle
    return high


@entry
def top_direction(diagonal: Vector, beside: Vector) -> Vector:
    """The eigenvector of the largest eigenvalue: inverse iteration, from just above it."""
    shift = eigenvalue(diagonal, beside, len(diagonal) - 1) + reach(diagonal, beside) * 1e-14
    found = np.ones(len(diagonal))
    for _ in range(3):
        found = _solve_shifted(diagonal, beside, shift, found)
        found /= np.sqrt((found * found).sum())
    return found


@compiled
def reach(diagonal: Vector, beside: Vector) -> float:
    """No eigenvalue has a larger magnitude (Gershgorin)."""
    largest = 0.0
    for i in range(len(diagonal)):
        left = abs(beside[i - 1]) if i else 0.0
        right = abs(beside[i]) if i < len(beside) else 0.0
        largest = max(largest, abs(diagonal[i]) + left + right)
    return largest


@compiled
def _count_below(diagonal: Vector, beside: Vector, limit: float) -> int:
    """Eigenvalues of a symmetric tridiagonal matrix that are less than `limit` (Sturm)."""
    count, pivot = 0, 1.0
    for i in range(len(diagonal)):
        pivot = diagonal[i] - limit - (beside[i - 1] ** 2 / pivot if i else 0.0)
        if pivot == 0.0:
            pivot = 1e-300
        if pivot < 0:
            count += 1
    return count


@compiled
def _solve_shifted(diagonal: Vector, beside: Vector, shift: float, right: Vector) -> Vector:
    """(shift − T)⁻¹ · right, for a shift above all eigenvalues: positive definite, so no pivots are needed."""
    size = len(diagonal)
    found, pivots = right.copy(), np.empty(size)
    pivots[0] = shift - diagonal[0]
    for i in range(1, size):
        factor = -beside[i - 1] / pivots[i - 1]
        pivots[i] = shift - diagonal[i] + factor * beside[i - 1]
        found[i] -= factor * found[i - 1]
    found[size - 1] /= pivots[size - 1]
    for i in range(size - 2, -1, -1):
        found[i] = (found[i] + beside[i] * found[i + 1]) / pivots[i]
    return found
