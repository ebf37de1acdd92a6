"""Products of rows with vectors, and what Lanczos needs besides, in float64 and on the calling thread alone.

A threaded BLAS meets a barrier in each of its thousands of small calls; where several tensors are examined at once, on
as many threads as there are cores, most of the time would be spent waiting at them. Only Gram matrices, a few large
calls, are left to it.
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
    """out += blockᵀ · block · vector, going over the block once"""
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
    """Cholesky: the lower triangle becomes the factor; False where the matrix is not positive definite. What is above
    the diagonal stays."""
    size = len(matrix)
    for top in range(0, size, 4):
        bottom = min(top + 4, size)
        # Rows by fours, as long as they are four: each row above is read once for all of them.
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
    """(factor · factorᵀ)⁻¹ · vector, of a lower triangle"""
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
    """Leaves what of the vector is orthogonal to the rows of the basis."""
    # Once is not enough in finite precision, twice is.
    for _ in range(2):
        for i in range(len(basis)):
            known, total = basis[i], 0.0
            for j in range(len(vector)):
                total += known[j] * vector[j]
            for j in range(len(vector)):
                vector[j] -= total * known[j]


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


_SEED = 20_090_219
_BASIS_BYTES = 128 << 20
_LEAST_VECTORS, _MOST_VECTORS = 8, 256
# Directions smaller than this, relative to the operator, are its rounding: the space found so far is all there is.
_ROUNDING = 1e-13


@dataclass(frozen=True, slots=True)
class Ritz:
    largest: float
    residual: float
    smallest: float
    products: int


def largest_eigenvalue(
    operator: Callable[[Vector], Vector], length: int, *, tolerance: float, most_products: int = 300
) -> Ritz:
    """Until the residual is `tolerance` of the value, from a start that is the same every time."""
    start, products, smallest = random_vector(length), 0, np.inf
    while True:
        found, start = _run(operator, start, tolerance, most_products - products)
        products, smallest = products + found.products, min(smallest, found.smallest)
        if found.residual <= tolerance * found.largest or products >= most_products:
            return Ritz(found.largest, found.residual, smallest, products)


def _run(operator: Callable[[Vector], Vector], start: Vector, tolerance: float, most: int) -> tuple[Ritz, Vector]:
    """As far as the basis has room; also the best direction."""
    room = min(_room(len(start)), most)
    basis = np.empty((room, len(start)))
    diagonal, beside = np.empty(room), np.empty(room)
    basis[0] = start / np.linalg.norm(start)
    for size in range(1, room + 1):
        image = operator(basis[size - 1])
        diagonal[size - 1] = basis[size - 1] @ image
        project_out(basis[:size], image)
        beside[size - 1] = np.linalg.norm(image)
        seen = diagonal[:size], beside[: size - 1]
        largest, direction = eigenvalue(*seen, size - 1), top_direction(*seen)
        residual = float(beside[size - 1] * abs(direction[-1]))
        is_all = beside[size - 1] <= _ROUNDING * largest
        if is_all or residual <= tolerance * largest or size == room:
            break
        basis[size] = image / beside[size - 1]
    residual = 0.0 if is_all else residual
    return Ritz(largest, residual, eigenvalue(*seen, 0), size), np.asarray(direction @ basis[:size])


def random_vector(length: int) -> Vector:
    """The same one every time; the global generators are not touched."""
    return np.random.default_rng(_SEED).standard_normal(length)


def _room(length: int) -> int:
    return min(length, max(_LEAST_VECTORS, min(_MOST_VECTORS, _BASIS_BYTES // (8 * length))))
