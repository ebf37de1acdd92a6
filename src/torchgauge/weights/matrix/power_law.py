"""The exponent of a power-law tail: maximum likelihood, the tail's start where the Kolmogorov–Smirnov distance is least
(Clauset, Shalizi, Newman: Power-law distributions in empirical data, 2009)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import isfinite, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

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


def fit(values: NDArray[np.float64]) -> PowerLaw | None:
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
