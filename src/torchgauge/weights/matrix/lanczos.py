"""The largest eigenvalue of a symmetric, positive semidefinite operator, by Lanczos iteration.

The basis is kept orthogonal in full; when it has grown to its capacity the iteration starts again from the best
direction, so that memory is bounded. Every Ritz value lies between the smallest and the largest eigenvalue, and an
eigenvalue lies within the residual of each: `residual` bounds the error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

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
    from torchgauge.weights.matrix.products import project_out
    from torchgauge.weights.matrix.tridiagonal import eigenvalue, top_direction

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
