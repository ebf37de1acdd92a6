"""All figures of a matrix, by the keys of the JSON document: norms and condition number with error bounds, and all
singular values with the figures derived from them (effective rank, low-rank approximation, power law of the tail).

The power law is fitted by maximum likelihood; its tail starts where the Kolmogorov–Smirnov distance is smallest
(Clauset, Shalizi, Newman: Power-law distributions in empirical data, 2009).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, prod, sqrt
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.matrix.operand import Operand, gram_floor, gram_matrix, read_operand
from torchgauge.weights.passes import SMALL_ELEMENTS
from torchgauge.weights.rows import Rows

if TYPE_CHECKING:
    from torchgauge.facts import document_types
    from torchgauge.facts.document_types import LowRank, MatrixFigures, Spectrum

# The Gram matrix of this side takes 512 MiB, as much again to work on, and minutes of time.
MAX_SIDE = 8192
# Up to here an SVD of the matrix itself costs no more than one of its Gram matrix, and is more precise.
_DIRECT_MAX_SIDE = 256
_DIRECT_MAX_ELEMENTS = 1 << 18
REPORTED_VALUES = 256
RELATIVE_ERRORS = (0.01, 0.05)
ENERGY_SHARE = 0.99
# With fewer points the standard error of alpha is more than a fifth of its distance to 1.
MIN_TAIL_POINTS = 20
# Values that differ by less than this share on average differ only by rounding: there is no tail.
_MIN_TAIL_SPREAD = 1e-6

Values = NDArray[np.float64]  # descending


def singular_values(operand: Operand) -> tuple[Values, float]:
    """In the operand's unit, and the floor below which they are rounding."""
    rows, columns = operand.shape
    is_small = min(rows, columns) <= _DIRECT_MAX_SIDE and rows * columns <= _DIRECT_MAX_ELEMENTS
    if operand.held is not None and is_small:
        values = np.linalg.svd(operand.held.astype(np.float64), compute_uv=False)
        return values, float(values[0]) * max(rows, columns) * float(np.finfo(np.float64).eps)
    squares = np.linalg.eigvalsh(gram_matrix(operand))[::-1]
    values = np.sqrt(np.maximum(squares, 0))
    return values, float(values[0]) * gram_floor(len(values))


def spectrum_figures(values: Values, floor: float, shape: tuple[int, int], unit: float) -> Spectrum:
    """The `spectrum` member of the JSON document. `values` are in units of `unit`; errors are relative Frobenius errors
    of the best approximation of a rank."""
    law = fit_power_law(values[values > floor] ** 2 / max(shape))
    count = min(len(values), REPORTED_VALUES)
    evenly_by_rank = values[np.round(np.linspace(0, len(values) - 1, count)).astype(int)]
    reported = [float(value) * unit for value in evenly_by_rank]
    return {
        "singular_values": [value if isfinite(value) else None for value in reported],
        "singular_value_floor": floor * unit,
        "rank": int((values > floor).sum()),
        "effective_rank": effective_rank(values),
        "energy_rank": rank_at(values, sqrt(1 - ENERGY_SHARE)),
        "low_rank": {str(error): low_rank(values, shape, error) for error in RELATIVE_ERRORS},
        "power_law": None if law is None else law.to_dict(unit * unit),
    }


def effective_rank(values: Values) -> float:
    """The exponential of the entropy of the energy: n for n equal singular values, 1 for a single one."""
    energy = values**2 / (values**2).sum()
    energy = energy[energy > 0]
    return float(np.exp(-(energy * np.log(energy)).sum()))


def rank_at(values: Values, error: float) -> int:
    """The lowest rank whose best approximation has at most this relative Frobenius error."""
    # Summed from the smallest up, so that small values are not lost in rounding.
    tails = np.append(np.cumsum((values**2)[::-1])[::-1], 0.0)
    return int(np.argmax(tails <= error**2 * tails[0]))


def low_rank(values: Values, shape: tuple[int, int], error: float) -> LowRank:
    rows, columns = shape
    rank = rank_at(values, error)
    return {"rank": rank, "params_saved": max(0, rows * columns - rank * (rows + columns))}


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """Density ∝ x**−alpha for the `tail` values from `xmin` on; `alpha_error` is the standard error of alpha."""

    alpha: float
    xmin: float
    ks: float
    tail: int
    alpha_error: float

    def to_dict(self, unit: float = 1.0) -> document_types.PowerLaw:
        """`unit` is that of the values; the exponent does not depend on it."""
        xmin = self.xmin * unit
        return {
            "alpha": self.alpha,
            "xmin": xmin if isfinite(xmin) else None,
            "ks": self.ks,
            "tail": self.tail,
            "alpha_error": self.alpha_error,
        }


def fit_power_law(values: NDArray[np.float64]) -> PowerLaw | None:
    """None if no tail has enough distinct points."""
    ordered = np.sort(values[values > 0])
    logs = np.log(ordered)
    log_sums = np.cumsum(logs[::-1])[::-1]  # over each tail
    best: PowerLaw | None = None
    for first in range(len(ordered) - MIN_TAIL_POINTS + 1):
        count = len(ordered) - first
        spread = float(log_sums[first]) - count * float(logs[first])
        if spread <= count * _MIN_TAIL_SPREAD:
            continue
        alpha = 1 + count / spread
        model = -np.expm1((1 - alpha) * (logs[first:] - logs[first]))
        steps = np.arange(count + 1) / count
        distance = max(float((steps[1:] - model).max()), float((model - steps[:-1]).max()))
        if best is None or distance < best.ks:
            best = PowerLaw(alpha, float(ordered[first]), distance, count, (alpha - 1) / sqrt(count))
    return best


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


def norms_of_eigenvalues(values: NDArray[np.floating]) -> Norms:
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
    return f"above {1 / relative:.1e}: rank deficient at this precision"


FIGURES = (
    "spectral_norm", "spectral_tolerance", "stable_rank", "condition_estimate", "condition_is_lower_bound",
    "condition_note", "dead_rows", "constant_rows", "duplicate_rows", "dead_columns", "constant_columns",
    "duplicate_columns", "matrix_examples", "matrix_note", "spectrum",
)  # fmt: skip

# Types of codes and scales, whose own singular values mean nothing.
_CODE_DTYPES = ("float4", "float8_e8m0fnu")


def matrix_figures(rows: Rows, *, spectrum: bool = False) -> MatrixFigures:
    """Every key of `FIGURES`; null if a figure does not apply, with the reason in `matrix_note`."""
    if not rows.dtype.startswith(("float", "bfloat")) or rows.dtype.startswith(_CODE_DTYPES):
        return no_figures(f"{rows.dtype} values are codes, not the numbers of a matrix")
    if min(rows.shape) < 2:
        return no_figures("fewer than two rows or columns")
    operand = read_operand(rows)
    figures: MatrixFigures = {**no_figures(None), **cast("MatrixFigures", operand.screen.counts())}
    figures["matrix_examples"] = operand.screen.examples()
    if operand.screen.largest == 0:
        figures["spectral_norm"] = figures["spectral_tolerance"] = 0.0
        figures["matrix_note"] = "all values are zero"
        return figures
    side = min(operand.shape)
    if spectrum and side <= MAX_SIDE:
        values, floor = singular_values(operand)
        norms = norms_of_singular_values(values, floor)
        figures["spectrum"] = spectrum_figures(values, floor, operand.shape, operand.unit)
    else:
        norms = compute_norms(operand)
        if spectrum:
            figures["matrix_note"] = f"no spectrum: the smaller side is {side:,}, more than {MAX_SIDE:,}"
    spectral_norm = norms.norm * operand.unit
    figures["spectral_norm"] = spectral_norm if isfinite(spectral_norm) else None
    figures["spectral_tolerance"] = norms.tolerance
    # Rounding must not give a rank below one.
    figures["stable_rank"] = max(1.0, operand.squared_norm / norms.norm**2)
    figures["condition_estimate"] = norms.condition
    figures["condition_is_lower_bound"] = norms.is_lower_bound if norms.condition is not None else None
    figures["condition_note"] = norms.note
    return figures


def no_figures(reason: str | None) -> MatrixFigures:
    return {**cast("MatrixFigures", dict.fromkeys(FIGURES)), "matrix_note": reason}
