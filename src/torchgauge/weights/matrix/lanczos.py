"""Eigenvalues of large symmetric operators by Lanczos iteration, and the vector kernels it needs.

The kernels run in float64 on the calling thread. A threaded BLAS has a barrier in each of thousands of small calls;
with one tensor per core, most of the time would be spent waiting there. Only Gram matrices, a few large calls, use it.

The Lanczos basis is kept fully orthogonal; when it is full, the iteration restarts from the best direction, so memory
is bounded. Every Ritz value lies between the smallest and the largest eigenvalue, with an eigenvalue within its
residual.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.kernels.jit import compiled, compiled_for_finite, entry, entry_of_finite

Vector = NDArray[np.float64]


@entry_of_finite
def dot_rows(block: NDArray[Any], vector: Vector, out: Vector) -> None:
    """out = block · vector"""
    for i in range(len(block)):
        row, total = block[i], 0.0
        for j in range(len(vector)):
            total += np.float64(row[j]) * vector[j]
        out[i] = total


@entry_of_finite
def add_rows(block: NDArray[Any], weights: Vector, out: Vector) -> None:
    """out += weights · block"""
    for i in range(len(block)):
        row, weight = block[i], weights[i]
        for j in range(len(out)):
            out[j] += weight * np.float64(row[j])


@entry_of_finite
def add_squared(block: NDArray[Any], vector: Vector, out: Vector) -> None:
    """out += blockᵀ · block · vector, in one pass over the block"""
    for i in range(len(block)):
        row, total = block[i], 0.0
        for j in range(len(vector)):
            total += np.float64(row[j]) * vector[j]
        for j in range(len(vector)):
            out[j] += total * np.float64(row[j])


@compiled_for_finite
def _eliminate_four(matrix: NDArray[np.float64], top: int) -> None:
    first, second, third, fourth = matrix[top], matrix[top + 1], matrix[top + 2], matrix[top + 3]
    for j in range(top):
        above = matrix[j]
        one, two, three, four = 0.0, 0.0, 0.0, 0.0
        for k in range(j):
            value = above[k]
            one += first[k] * value
            two += second[k] * value
            three += third[k] * value
            four += fourth[k] * value
        first[j] = (first[j] - one) / above[j]
        second[j] = (second[j] - two) / above[j]
        third[j] = (third[j] - three) / above[j]
        fourth[j] = (fourth[j] - four) / above[j]


@entry_of_finite
def factorize(matrix: NDArray[np.float64]) -> bool:
    """Cholesky factor in the lower triangle, in place; False if the matrix is not positive definite."""
    size = len(matrix)
    for top in range(0, size, 4):
        bottom = min(top + 4, size)
        # Four rows at a time, so that each row above is read once for all of them.
        if bottom - top == 4:
            _eliminate_four(matrix, top)
        for i in range(top, bottom):
            row = matrix[i]
            for j in range(top if bottom - top == 4 else 0, i):
                above, total = matrix[j], row[j]
                for k in range(j):
                    total -= row[k] * above[k]
                row[j] = total / above[j]
            rest = row[i]
            for k in range(i):
                rest -= row[k] * row[k]
            if rest <= 0:
                return False
            row[i] = np.sqrt(rest)
    return True


@entry_of_finite
def solve(factor: NDArray[np.float64], vector: Vector) -> Vector:
    """(factor · factorᵀ)⁻¹ · vector, for a lower triangular factor"""
    found = vector.copy()
    for i in range(len(found)):
        row, total = factor[i], found[i]
        for j in range(i):
            total -= row[j] * found[j]
        found[i] = total / row[i]
    for i in range(len(found) - 1, -1, -1):
        row = factor[i]
        found[i] /= row[i]
        value = found[i]
        for j in range(i):
            found[j] -= value * row[j]
    return found


@entry_of_finite
def project_out(basis: NDArray[np.float64], vector: Vector) -> None:
    """Make the vector orthogonal to the rows of the basis, in place."""
    # Twice is enough: once leaves rounding errors.
    for _ in range(2):
        for i in range(len(basis)):
            known, total = basis[i], 0.0
            for j in range(len(vector)):
                total += known[j] * vector[j]
            for j in range(len(vector)):
                vector[j] -= total * known[j]


@entry
def eigenvalue(diagonal: Vector, off_diagonal: Vector, index: int) -> float:
    """The eigenvalue with `index` smaller ones, by bisection, to the precision of the largest magnitude."""
    bound = _gershgorin_bound(diagonal, off_diagonal)
    low, high = -bound, bound
    while high - low > 1e-15 * bound:
        middle = (low + high) / 2
        if _count_below(diagonal, off_diagonal, middle) > index:
            high = middle
        else:
            low = middle
    return high


@entry
def top_direction(diagonal: Vector, off_diagonal: Vector) -> Vector:
    """The eigenvector of the largest eigenvalue, by inverse iteration with a shift just above it."""
    shift = eigenvalue(diagonal, off_diagonal, len(diagonal) - 1) + _gershgorin_bound(diagonal, off_diagonal) * 1e-14
    found = np.ones(len(diagonal))
    for _ in range(3):
        found = _solve_shifted(diagonal, off_diagonal, shift, found)
        found /= np.sqrt((found * found).sum())
    return found


@compiled
def _gershgorin_bound(diagonal: Vector, off_diagonal: Vector) -> float:
    """No eigenvalue has a larger magnitude."""
    largest = 0.0
    for i in range(len(diagonal)):
        left = abs(off_diagonal[i - 1]) if i else 0.0
        right = abs(off_diagonal[i]) if i < len(off_diagonal) else 0.0
        largest = max(largest, abs(diagonal[i]) + left + right)
    return largest


@compiled
def _count_below(diagonal: Vector, off_diagonal: Vector, limit: float) -> int:
    """The number of eigenvalues less than `limit` (Sturm sequence)."""
    count, pivot = 0, 1.0
    for i in range(len(diagonal)):
        pivot = diagonal[i] - limit - (off_diagonal[i - 1] ** 2 / pivot if i else 0.0)
        if pivot == 0.0:
            pivot = 1e-300
        if pivot < 0:
            count += 1
    return count


@compiled
def _solve_shifted(diagonal: Vector, off_diagonal: Vector, shift: float, right: Vector) -> Vector:
    """(shift − T)⁻¹ · right, for a shift above all eigenvalues: positive definite, so no pivots are needed."""
    size = len(diagonal)
    found, pivots = right.copy(), np.empty(size)
    pivots[0] = shift - diagonal[0]
    for i in range(1, size):
        factor = -off_diagonal[i - 1] / pivots[i - 1]
        pivots[i] = shift - diagonal[i] + factor * off_diagonal[i - 1]
        found[i] -= factor * found[i - 1]
    found[size - 1] /= pivots[size - 1]
    for i in range(size - 2, -1, -1):
        found[i] = (found[i] + off_diagonal[i] * found[i + 1]) / pivots[i]
    return found


_SEED = 20_090_219
_BASIS_BYTES = 128 << 20
_MIN_BASIS, _MAX_BASIS = 8, 256
# A new direction smaller than this, relative to the operator, is rounding: the basis spans the whole invariant space.
_ROUNDING = 1e-13


@dataclass(frozen=True, slots=True)
class Ritz:
    largest: float
    residual: float
    smallest: float
    products: int


def largest_eigenvalue(
    operator: Callable[[Vector], Vector], length: int, *, tolerance: float, max_products: int = 300
) -> Ritz:
    """Iterate until the residual is at most `tolerance` of the value."""
    # The same start every time, without touching the global generators.
    start, products, smallest = np.random.default_rng(_SEED).standard_normal(length), 0, np.inf
    while True:
        ritz, start = _run(operator, start, tolerance, max_products - products)
        products, smallest = products + ritz.products, min(smallest, ritz.smallest)
        if ritz.residual <= tolerance * ritz.largest or products >= max_products:
            return Ritz(ritz.largest, ritz.residual, smallest, products)


def _run(
    operator: Callable[[Vector], Vector], start: Vector, tolerance: float, max_products: int
) -> tuple[Ritz, Vector]:
    """Iterate until the basis is full; also returns the best direction."""
    length = len(start)
    capacity = min(length, max(_MIN_BASIS, min(_MAX_BASIS, _BASIS_BYTES // (8 * length))), max_products)
    basis = np.empty((capacity, length))
    diagonal, off_diagonal = np.empty(capacity), np.empty(capacity)
    basis[0] = start / np.linalg.norm(start)
    for size in range(1, capacity + 1):
        image = operator(basis[size - 1])
        diagonal[size - 1] = basis[size - 1] @ image
        project_out(basis[:size], image)
        off_diagonal[size - 1] = np.linalg.norm(image)
        tridiagonal = diagonal[:size], off_diagonal[: size - 1]
        largest, direction = eigenvalue(*tridiagonal, size - 1), top_direction(*tridiagonal)
        residual = float(off_diagonal[size - 1] * abs(direction[-1]))
        is_invariant = off_diagonal[size - 1] <= _ROUNDING * largest
        if is_invariant or residual <= tolerance * largest or size == capacity:
            break
        basis[size] = image / off_diagonal[size - 1]
    ritz = Ritz(largest, 0.0 if is_invariant else residual, eigenvalue(*tridiagonal, 0), size)
    return ritz, np.asarray(direction @ basis[:size])
