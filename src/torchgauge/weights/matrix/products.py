"""Products of rows with vectors, and what Lanczos needs besides, in float64 and on the calling thread alone.

A threaded BLAS meets a barrier in each of its thousands of small calls; where several tensors are examined at once, on
as many threads as there are cores, most of the time would be spent waiting at them. Only Gram matrices, a few large
calls, are left to it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.kernels.jit import compiled_for_finite, entry_of_finite

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
