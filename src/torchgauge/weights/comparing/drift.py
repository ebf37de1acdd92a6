"""How far one tensor is from another: one fused pass over both."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.kernels.jit import entry

# Sums of so many products are added up in turn: rounding then grows with the number of runs only.
_RUN = 4096
# Beyond these powers of two, squares and their sums may leave float64; and the largest unit that is a number itself.
_SQUARED, _MOST = 400, 1000


@dataclass(frozen=True, slots=True)
class Drift:
    """Sums over pairs of finite values (a, b), in a unit of their own; `changed` counts all values that differ, NaN
    being equal to NaN. `largest` is the largest difference, `peak` the largest magnitude, both as they are."""

    count: int = 0
    changed: int = 0
    squared_difference: float = 0.0
    squared_a: float = 0.0
    squared_b: float = 0.0
    product: float = 0.0
    largest: float = 0.0
    peak: float = 0.0

    def __add__(self, other: Drift) -> Drift:
        return Drift(
            self.count + other.count,
            self.changed + other.changed,
            self.squared_difference + other.squared_difference,
            self.squared_a + other.squared_a,
            self.squared_b + other.squared_b,
            self.product + other.product,
            max(self.largest, other.largest),
            max(self.peak, other.peak),
        )

    @property
    def exponent(self) -> int:
        """Of the unit in which squares neither overflow nor vanish."""
        return max(min(math.frexp(self.peak)[1], _MOST), -_MOST)

    @property
    def is_in_range(self) -> bool:
        return self.peak == 0 or -_SQUARED <= self.exponent <= _SQUARED

    def figures(self) -> dict[str, Any]:
        """Relative to b; null where that is nothing to relate to."""
        norm = math.sqrt(self.squared_b)
        norms = math.sqrt(self.squared_a) * norm
        return {
            "relative_l2": math.sqrt(self.squared_difference) / norm if norm else None,
            "cosine": max(min(self.product / norms, 1.0), -1.0) if norms else None,
            "changed_share": self.changed / self.count if self.count else 0.0,
            "max_abs_difference": self.largest if math.isfinite(self.largest) else None,
        }


def drift(a: NDArray[Any], b: NDArray[Any], exponent: int = 0) -> Drift:
    """Of two flat arrays of the same length; squares are summed in units of 2**exponent."""
    changed, *sums = _sums(a, b, math.ldexp(1.0, -exponent))
    return Drift(len(a), int(changed), *(float(value) for value in sums))


@entry
def _sums(a: NDArray[Any], b: NDArray[Any], unit: float) -> tuple[int, float, float, float, float, float, float]:
    changed = 0
    difference = square_a = square_b = product = largest = peak = 0.0
    for start in range(0, len(a), _RUN):
        run_difference = run_a = run_b = run_product = 0.0
        for place in range(start, min(start + _RUN, len(a))):
            x, y = np.float64(a[place]), np.float64(b[place])
            changed += x != y and not (math.isnan(x) and math.isnan(y))
            if math.isfinite(x) and math.isfinite(y):
                largest = max(largest, abs(x - y))
                peak = max(peak, abs(x), abs(y))
                x, y = x * unit, y * unit
                step = x - y
                run_difference += step * step
                run_a += x * x
                run_b += y * y
                run_product += x * y
        difference += run_difference
        square_a += run_a
        square_b += run_b
        product += run_product
    return changed, difference, square_a, square_b, product, largest, peak
