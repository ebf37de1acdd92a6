"""From a tally to the statistics of the JSON document."""

from __future__ import annotations

from math import isclose, ldexp, sqrt
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.distribution import Bins, bins_of, bins_of_values
from torchgauge.weights.symbols import FLOAT32, SYMBOLS, code_bounds, stored_symbols
from torchgauge.weights.tally import Tally, sum_by_code

if TYPE_CHECKING:
    from torchgauge.facts import document_types
    from torchgauge.facts.document_types import Spread

QUANTILES = ("0.001", "0.01", "0.05", "0.25", "0.5", "0.75", "0.95", "0.99", "0.999")
HISTOGRAM_BINS = 64
# Values closer to zero than this many standard deviations count as `near_zero`.
NEAR_ZERO_STD = 0.01
# Tensors of at most this many values are sorted, which makes quantiles exact. Only the size decides, so the same tensor
# has the same figures however it was read.
EXACT_QUANTILES_MAX_ELEMENTS = 16384
# Constants, masks and positions fit any type: a narrower type is not reported for them.
_NARROWER_DTYPE_MIN_SYMBOLS = 16
# Rounding error of a float64 sum; the last mantissa bit of float32 weighs 100,000 times as much.
_SUM_ROUNDING = 1e-12

# The figures about how values are stored, of values after dequantization.
NOT_STORED: Spread = {"entropy_bits": None, "entropy_symbol_bits": None, "compressibility": None}


def value_statistics(tally: Tally, *, exact_values: NDArray[np.float64] | None = None) -> Spread:
    """All statistics that do not depend on the order of the values; null without values.

    Counts and shares are over all values, everything else over the finite ones. `quantile_resolution` is the relative
    width of the ranges in which quantiles, near_zero and the histogram are interpolated; 0 means exact, as with
    `exact_values`. With a standard deviation of 0, `near_zero` counts the exact zeros.
    """
    bins = bins_of(tally) if exact_values is None else bins_of_values(exact_values)
    n, is_constant = tally.finite, tally.minimum == tally.maximum
    std = 0.0 if not n or is_constant else ldexp(sqrt(tally.m2 / n), tally.exponent)
    moments: Spread = {
        "mean": None, "std": None, "min": None, "max": None, "abs_max": None, "skewness": None, "kurtosis": None,
        "l1": None, "l2": None,
    }  # fmt: skip
    if n:
        has_spread = not is_constant and tally.m2 > 0
        moments = {
            "mean": tally.minimum if is_constant else ldexp(tally.mean, tally.exponent),
            "std": std,
            "min": tally.minimum,
            "max": tally.maximum,
            "abs_max": max(abs(tally.minimum), abs(tally.maximum)),
            "skewness": sqrt(n) * tally.m3 / tally.m2**1.5 if has_spread else None,
            "kurtosis": n * tally.m4 / tally.m2**2 - 3.0 if has_spread else None,
            "l1": _ldexp_or_none(tally.l1, tally.exponent),
            "l2": _ldexp_or_none(sqrt(tally.m2 + n * tally.mean**2), tally.exponent),
        }
    near_zero, bound = float(tally.zeros), NEAR_ZERO_STD * std
    if bound:
        # −bound itself is not near zero; the next larger number is.
        up_to, from_ = bins.count_below(np.array([bound, np.nextafter(-bound, 0.0)])).tolist()
        near_zero = max(up_to - from_, near_zero)
    quantiles = bins.quantiles([float(share) for share in QUANTILES]) if bins.total else None
    is_exact = np.array_equal(bins.lower, bins.upper)
    return {
        "nan": tally.nan,
        "inf": tally.inf,
        "subnormal": tally.subnormal,
        "finite": n,
        "zeros": tally.zeros,
        "sparsity": tally.zeros / tally.count if tally.count else None,
        "near_zero": near_zero / tally.count if tally.count else None,
        **moments,
        "quantiles": None if quantiles is None else dict(zip(QUANTILES, quantiles, strict=True)),
        "quantile_resolution": 0.0 if is_exact else SYMBOLS[tally.symbol].resolution,
        "histogram": _histogram(tally, bins),
        **_entropy(tally),
    }


def _ldexp_or_none(value: float, exponent: int) -> float | None:
    """None for a norm beyond float64."""
    try:
        return ldexp(value, exponent)
    except OverflowError:
        return None


def _histogram(tally: Tally, bins: Bins) -> document_types.Bins | None:
    """Bins of equal width from the minimum to the maximum; a single bin if all values are equal."""
    if not bins.total:
        return None
    if tally.minimum == tally.maximum:
        return {"edges": [tally.minimum, tally.maximum], "counts": [bins.total]}
    # Halved and doubled, because the range may span all of float64.
    edges = 2 * np.linspace(tally.minimum / 2, tally.maximum / 2, HISTOGRAM_BINS + 1)
    below = np.rint(bins.count_below(edges[1:-1]))
    counts = np.diff(below, prepend=0, append=bins.total)
    return {"edges": edges.tolist(), "counts": counts.astype(np.int64).tolist()}


def _entropy(tally: Tally) -> Spread:
    symbol = SYMBOLS[tally.symbol]
    if not tally.count:
        return {"entropy_bits": None, "entropy_symbol_bits": symbol.bits, "compressibility": None}
    symbols = stored_symbols(symbol, tally.codes)
    counts = tally.counts if symbols is tally.codes else sum_by_code(symbols, tally.counts)[1]
    shares = counts / tally.count
    # + 0.0 turns the −0 of a single symbol into 0.
    entropy = float(-(shares * np.log2(shares)).sum()) + 0.0
    return {"entropy_bits": entropy, "entropy_symbol_bits": symbol.bits, "compressibility": 1 - entropy / symbol.bits}


def narrower_dtype(tally: Tally, dtype: str) -> str | None:
    """`bfloat16` if it holds every value of a float32 tensor without loss.

    A float32 code is the upper half of the bits. Truncating to it never makes a magnitude larger, so the sums of
    magnitudes before and after agree only if nothing was truncated.
    """
    if dtype != FLOAT32.name or tally.finite != tally.count or len(tally.codes) < _NARROWER_DTYPE_MIN_SYMBOLS:
        return None
    lower, upper = code_bounds(FLOAT32, tally.codes)
    truncated = np.ldexp(np.minimum(np.abs(lower), np.abs(upper)), -tally.exponent)
    return "bfloat16" if isclose(float(truncated @ tally.counts), tally.l1, rel_tol=_SUM_ROUNDING) else None
