"""Whether a wider type than needed holds the values."""

from __future__ import annotations

from math import isclose
from typing import Any

import numpy as np

from torchgauge.weights.counting.symbols import FLOAT32, code_bounds
from torchgauge.weights.counting.tally import Tally

# Constants, masks and positions fit everything, and nobody gains by it.
_LEAST_SYMBOLS = 16
# The rounding of a sum in float64; the last bit of every float32 is a hundred thousand times as much.
_ROUNDING = 1e-12


def fitting(tally: Tally, dtype: str) -> dict[str, Any]:
    """`fits`: bfloat16, where every float32 value is one; else nothing.

    A code is the upper half of the bits. Cut to it a number is never larger, so the sums of magnitudes before and after
    agree only where there was nothing to cut."""
    if dtype != FLOAT32.name or tally.finite != tally.count or len(tally.codes) < _LEAST_SYMBOLS:
        return {}
    lower, upper = code_bounds(FLOAT32, tally.codes)
    cut = np.ldexp(np.minimum(np.abs(lower), np.abs(upper)), -tally.exponent)
    return {"fits": "bfloat16"} if isclose(float(cut @ tally.counts), tally.l1, rel_tol=_ROUNDING) else {}
