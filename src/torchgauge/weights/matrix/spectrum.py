"""All singular values and what follows from them: effective rank, low-rank approximation, power law of the tail.

The power law is fitted by maximum likelihood; its tail starts where the Kolmogorov–Smirnov distance is smallest
(Clauset, Shalizi, Newman: Power-law distributions in empirical data, 2009).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import isfinite, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.matrix.operand import Operand, gram_floor, gram_matrix

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


def spectrum_figures(values: Values, floor: float, shape: tuple[int, int], unit: float) -> dict[str, Any]:
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
    # Summed from the smallest up, so that small values are not lost beside large ones.
    tails = np.append(np.cumsum((values**2)[::-1])[::-1], 0.0)
    return int(np.argmax(tails <= error**2 * tails[0]))


def low_rank(values: Values, shape: tuple[int, int], error: float) -> dict[str, int]:
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

    def to_dict(self, unit: float = 1.0) -> dict[str, Any]:
        """`unit` is that of the values; the exponent does not depend on it."""
        xmin = self.xmin * unit
        return asdict(self) | {"xmin": xmin if isfinite(xmin) else None}


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
