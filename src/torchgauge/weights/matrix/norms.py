"""Spectral norm and condition of a matrix, with what is known of their error."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.matrix.lanczos import Ritz, Vector, largest_eigenvalue
from torchgauge.weights.matrix.operand import Operand, gram_floor, gram_matrix

# A relative error of σ₁; the residual that is watched belongs to σ₁², hence twice as much.
TOLERANCE = 1e-4
# An order of magnitude is what a condition is read for; but a loose residual may be that of a neighbour.
CONDITION_TOLERANCE = 1e-3
# A Gram matrix costs as much as hundreds of products, and grows with the cube: above this side, products only.
GRAM_SIDE = 1024


@dataclass(frozen=True, slots=True)
class Norms:
    """`norm` is never above the true one, and below it by at most `tolerance` of it. `condition` is None where `note`
    says why; where `is_lower_bound`, the true one may be far above."""

    norm: float
    tolerance: float
    condition: float | None
    is_lower_bound: bool
    note: str | None = None


def norms_of(operand: Operand) -> Norms:
    return from_gram(gram_matrix(operand)) if min(operand.shape) <= GRAM_SIDE else from_products(operand)


def from_gram(matrix: NDArray[np.float64]) -> Norms:
    """The matrix is overwritten."""
    from torchgauge.weights.matrix.lanczos import dot_rows

    def multiply(vector: Vector) -> Vector:
        image = np.empty_like(vector)
        dot_rows(matrix, vector, image)
        return image

    found = largest_eigenvalue(multiply, len(matrix), tolerance=2 * TOLERANCE)
    norm, tolerance, floor = sqrt(found.largest), _tolerance(found), gram_floor(len(matrix))
    inverse = _largest_of_inverse(matrix)
    if inverse is None or 1 / sqrt(inverse * found.largest) <= floor:
        return Norms(norm, tolerance, None, False, _beyond(floor))
    return Norms(norm, tolerance, max(1.0, sqrt(found.largest * inverse)), False)


def from_products(operand: Operand) -> Norms:
    """Streams: each step is one pass over the rows. The smallest Ritz value is an upper bound of the smallest
    eigenvalue, so the condition comes out too low, the more so the closer the matrix is to square."""
    rows, columns = operand.shape
    is_by_row = operand.held is not None and rows < columns
    multiply = _squared_rows if is_by_row else _squared_columns
    length = rows if is_by_row else columns
    found = largest_eigenvalue(lambda vector: multiply(operand, vector), length, tolerance=2 * TOLERANCE)
    condition, note = _lower_bound(found, gram_floor(length))
    if length > rows:
        # The side that can be streamed has zeros besides the singular values, and rounding leads there.
        condition, note = None, "not estimated for a wide matrix that is read in blocks"
    return Norms(sqrt(found.largest), _tolerance(found), condition, True, note)


def from_values(values: NDArray[np.float64], floor: float) -> Norms:
    """From all singular values, descending, of which those up to `floor` are rounding."""
    largest, smallest = float(values[0]), float(values[-1])
    tolerance = len(values) * float(np.finfo(np.float64).eps)
    if smallest <= floor:
        return Norms(largest, tolerance, None, False, _beyond(floor / largest))
    return Norms(largest, tolerance, largest / smallest, False)


def _largest_of_inverse(matrix: NDArray[np.float64]) -> float | None:
    """None where the matrix is singular, as far as float64 can tell. Its lower triangle is overwritten."""
    from torchgauge.weights.matrix.lanczos import factorize, solve

    if not factorize(matrix):
        return None
    found = largest_eigenvalue(lambda vector: solve(matrix, vector), len(matrix), tolerance=2 * CONDITION_TOLERANCE)
    return found.largest


def _squared_columns(operand: Operand, vector: Vector) -> Vector:
    from torchgauge.weights.matrix.lanczos import add_squared

    image = np.zeros_like(vector)
    for block in operand.blocks():
        add_squared(block, vector, image)
    return image


def _squared_rows(operand: Operand, vector: Vector) -> Vector:
    from torchgauge.weights.matrix.lanczos import add_rows, dot_rows

    assert operand.held is not None
    across, image = np.zeros(operand.shape[1]), np.empty_like(vector)
    add_rows(operand.held, vector, across)
    dot_rows(operand.held, across, image)
    return image


def _lower_bound(found: Ritz, floor: float) -> tuple[float | None, str | None]:
    if found.smallest <= floor**2 * found.largest:
        return None, _beyond(floor)
    return sqrt(found.largest / found.smallest), None


def _tolerance(found: Ritz) -> float:
    return found.residual / found.largest / 2


def _beyond(relative: float) -> str:
    return f"above {1 / relative:.1e}: rank deficient, or closer to it than this precision can tell"
