"""Spectral norm and condition number of a matrix, with error bounds."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.matrix.operand import Operand, gram_floor, gram_matrix
from torchgauge.weights.passes import SMALL_ELEMENTS

Vector = NDArray[np.float64]

# Relative error of σ₁. The residual belongs to σ₁², so it may be twice as large.
TOLERANCE = 1e-4
# A condition number is read for its order of magnitude; but with a loose residual it may be that of a neighbour.
CONDITION_TOLERANCE = 1e-3
# A Gram matrix costs as much as hundreds of products, growing with the cube: above this side, products only.
GRAM_MAX_SIDE = 1024


@dataclass(frozen=True, slots=True)
class Norms:
    """`norm` is at most the true one, and smaller by at most `tolerance` of it. If `condition` is None, `note` gives
    the reason; with `is_lower_bound` the true condition may be far larger."""

    norm: float
    tolerance: float
    condition: float | None
    is_lower_bound: bool
    note: str | None = None


def compute_norms(operand: Operand) -> Norms:
    if prod(operand.shape) <= SMALL_ELEMENTS:
        return norms_of_eigenvalues(np.linalg.eigvalsh(gram_matrix(operand)))
    if min(operand.shape) <= GRAM_MAX_SIDE:
        return norms_of_gram(gram_matrix(operand))
    return norms_by_products(operand)


def norms_of_eigenvalues(values: NDArray[Any]) -> Norms:
    """From all eigenvalues of a Gram matrix, ascending."""
    largest, smallest, floor = float(values[-1]), float(values[0]), gram_floor(len(values))
    tolerance = len(values) * float(np.finfo(np.float64).eps)
    if smallest <= floor**2 * largest:
        return Norms(sqrt(largest), tolerance, None, False, _beyond_precision(floor))
    return Norms(sqrt(largest), tolerance, sqrt(largest / smallest), False)


def norms_of_gram(matrix: NDArray[np.float64]) -> Norms:
    """From a Gram matrix, which is overwritten."""
    from torchgauge.weights.matrix.lanczos import dot_rows, factorize, largest_eigenvalue, solve

    def multiply(vector: Vector) -> Vector:
        image = np.empty_like(vector)
        dot_rows(matrix, vector, image)
        return image

    ritz = largest_eigenvalue(multiply, len(matrix), tolerance=2 * TOLERANCE)
    norm, tolerance, floor = sqrt(ritz.largest), ritz.residual / ritz.largest / 2, gram_floor(len(matrix))
    if not factorize(matrix):
        return Norms(norm, tolerance, None, False, _beyond_precision(floor))
    inverse = largest_eigenvalue(
        lambda vector: solve(matrix, vector), len(matrix), tolerance=2 * CONDITION_TOLERANCE
    ).largest
    if 1 / sqrt(inverse * ritz.largest) <= floor:
        return Norms(norm, tolerance, None, False, _beyond_precision(floor))
    return Norms(norm, tolerance, max(1.0, sqrt(ritz.largest * inverse)), False)


def norms_by_products(operand: Operand) -> Norms:
    """Streamed, one pass over the rows per step. The smallest Ritz value is an upper bound of the smallest eigenvalue,
    so the condition is underestimated, the more so the closer the matrix is to square."""
    from torchgauge.weights.matrix.lanczos import add_rows, add_squared, dot_rows, largest_eigenvalue

    rows, columns = operand.shape
    held = operand.held if rows < columns else None

    def multiply(vector: Vector) -> Vector:
        if held is not None:
            across, image = np.zeros(columns), np.empty_like(vector)
            add_rows(held, vector, across)
            dot_rows(held, across, image)
            return image
        image = np.zeros_like(vector)
        for block in operand.blocks():
            add_squared(block, vector, image)
        return image

    length = columns if held is None else rows
    ritz = largest_eigenvalue(multiply, length, tolerance=2 * TOLERANCE)
    norm, tolerance, floor = sqrt(ritz.largest), ritz.residual / ritz.largest / 2, gram_floor(length)
    if length > rows:
        # Streaming multiplies by the longer side, whose operator has additional zeros that rounding leads to.
        return Norms(norm, tolerance, None, True, "not estimated for a wide matrix that is read in blocks")
    if ritz.smallest <= floor**2 * ritz.largest:
        return Norms(norm, tolerance, None, True, _beyond_precision(floor))
    return Norms(norm, tolerance, sqrt(ritz.largest / ritz.smallest), True)


def norms_of_singular_values(values: NDArray[np.float64], floor: float) -> Norms:
    """From all singular values in descending order; those up to `floor` are rounding."""
    largest, smallest = float(values[0]), float(values[-1])
    tolerance = len(values) * float(np.finfo(np.float64).eps)
    if smallest <= floor:
        return Norms(largest, tolerance, None, False, _beyond_precision(floor / largest))
    return Norms(largest, tolerance, largest / smallest, False)


def _beyond_precision(relative: float) -> str:
    return f"above {1 / relative:.1e}: rank deficient, as far as this precision can tell"
