"""All singular values, and what they say: effective rank, low-rank potential, the tail's power law."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import isfinite, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.matrix.operand import Operand, gram_floor, gram_matrix

# Its Gram matrix takes 512 MiB and as much again to work on, and minutes of time.
LARGEST_SIDE = 8192
# Up to here a decomposition of the matrix itself costs no more than its Gram matrix's, and has no floor.
_DIRECT_SIDE = 256
_DIRECT_ELEMENTS = 1 << 18
KEPT_VALUES = 256
ERRORS = (0.01, 0.05)
ENERGY = 0.99

Values = NDArray[np.float64]  # descending


def singular_values(operand: Operand) -> tuple[Values, float]:
    """In the operand's units, and the floor below which they are rounding, not the matrix."""
    rows, columns = operand.shape
    if operand.held is not None and min(rows, columns) <= _DIRECT_SIDE and rows * columns <= _DIRECT_ELEMENTS:
        values = np.linalg.svd(operand.held.astype(np.float64), compute_uv=False)
        return values, float(values[0]) * max(rows, columns) * float(np.finfo(np.float64).eps)
    squares = np.linalg.eigvalsh(gram_matrix(operand))[::-1]
    values = np.sqrt(np.maximum(squares, 0))
    return values, float(values[0]) * gram_floor(len(values))


def describe(values: Values, floor: float, shape: tuple[int, int], unit: float) -> dict[str, Any]:
    """`values` in units of `unit`. Each figure is of the matrix, not of a model of it: errors are relative Frobenius
    errors of the best approximation of that rank."""
    law = fit_power_law(values[values > floor] ** 2 / max(shape))
    scaled = [float(value) * unit for value in _evenly(values)]
    return {
        "singular_values": [value if isfinite(value) else None for value in scaled],
        "singular_value_floor": floor * unit,
        "rank": int((values > floor).sum()),
        "effective_rank": effective_rank(values),
        "energy_rank": rank_at(values, sqrt(1 - ENERGY)),
        "low_rank": {str(error): low_rank(values, shape, error) for error in ERRORS},
        "power_law": None if law is None else law.to_dict(unit * unit),
    }


def effective_rank(values: Values) -> float:
    """The exponential of the entropy of the energy: n for n equal singular values, 1 for a single one."""
    energy = values**2 / (values**2).sum()
    energy = energy[energy > 0]
    return float(np.exp(-(energy * np.log(energy)).sum()))


def rank_at(values: Values, error: float) -> int:
    """The least rank whose best approximation has at most this relative Frobenius error."""
    # Summed from the smallest up, so that a tail is not lost in what comes before it.
    tails = np.append(np.cumsum((values**2)[::-1])[::-1], 0.0)
    return int(np.argmax(tails <= error**2 * tails[0]))


def low_rank(values: Values, shape: tuple[int, int], error: float) -> dict[str, int]:
    rows, columns = shape
    rank = rank_at(values, error)
    return {"rank": rank, "params_saved": max(0, rows * columns - rank * (rows + columns))}


def _evenly(values: Values) -> Values:
    """At most as many as a report shows, evenly by rank, the first and the last among them."""
    count = min(len(values), KEPT_VALUES)
    return values[np.round(np.linspace(0, len(values) - 1, count)).astype(int)]


# With fewer the exponent's own error is above a fifth of its distance to 1.
LEAST_POINTS = 20
# Values that differ only by rounding, on average by less than this share, have no tail.
_LEAST_SPREAD = 1e-6


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
    """None where no tail has enough distinct points."""
    ordered = np.sort(values[values > 0])
    logs = np.log(ordered)
    # The sum of logs of each tail, from its start to the end.
    sums = np.cumsum(logs[::-1])[::-1]
    best: PowerLaw | None = None
    for first in range(len(ordered) - LEAST_POINTS + 1):
        found = _tail(ordered, logs, float(sums[first]), first)
        if found is not None and (best is None or found.ks < best.ks):
            best = found
    return best


def _tail(ordered: NDArray[np.float64], logs: NDArray[np.float64], log_sum: float, first: int) -> PowerLaw | None:
    count = len(ordered) - first
    spread = log_sum - count * float(logs[first])
    if spread <= count * _LEAST_SPREAD:
        return None
    alpha = 1 + count / spread
    model = -np.expm1((1 - alpha) * (logs[first:] - logs[first]))
    steps = np.arange(count + 1) / count
    distance = max(float((steps[1:] - model).max()), float((model - steps[:-1]).max()))
    return PowerLaw(alpha, float(ordered[first]), distance, count, (alpha - 1) / sqrt(count))
