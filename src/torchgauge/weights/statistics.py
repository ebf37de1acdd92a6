"""A tally to the figures of the contract, as plain JSON values."""

from __future__ import annotations

from math import isclose, ldexp, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.distribution import Bins, bins_of, bins_of_values
from torchgauge.weights.symbols import FLOAT32, SYMBOLS, code_bounds, stored_symbols
from torchgauge.weights.tally import Tally

QUANTILES = ("0.001", "0.01", "0.05", "0.25", "0.5", "0.75", "0.95", "0.99", "0.999")
HISTOGRAM_BINS = 64
NEAR_ZERO = 0.01
# Tensors of at most so many values are worth sorting: `figures` is given their values. The size alone decides, so that
# the same tensor has the same figures however it was read.
EXACT_ELEMENTS = 16384

Figures = dict[str, Any]


def figures(tally: Tally, *, exact_values: NDArray[np.float64] | None = None) -> Figures:
    """Every figure that does not depend on the order of the values; null where there are no values to take it of.

    Counts and shares are of all values, the rest is of the finite ones. `quantile_resolution` is the relative width of
    the ranges that quantiles, near_zero and the histogram are interpolated in: 0 where they are exact, as they are with
    the values given. `near_zero` counts exact zeros also where the standard deviation is 0."""
    bins = bins_of(tally) if exact_values is None else bins_of_values(exact_values)
    std = _std(tally)
    return {
        "nan": tally.nan,
        "inf": tally.inf,
        "subnormal": tally.subnormal,
        "finite": tally.finite,
        "zeros": tally.zeros,
        "sparsity": _share(tally.zeros, tally.count),
        "near_zero": _share(_near_zero(tally, bins, std), tally.count),
        **_moments(tally, std),
        "quantiles": _quantiles(bins),
        "quantile_resolution": _resolution(tally, bins),
        "histogram": _histogram(tally, bins),
        **_entropy(tally),
    }


def _share(part: float, whole: int) -> float | None:
    return part / whole if whole else None


def _std(tally: Tally) -> float:
    if not tally.finite or tally.minimum == tally.maximum:
        return 0.0
    return ldexp(sqrt(tally.m2 / tally.finite), tally.exponent)


def _moments(tally: Tally, std: float) -> Figures:
    if not tally.finite:
        return dict.fromkeys(
            ("mean", "std", "min", "max", "abs_max", "skewness", "kurtosis", "l1", "l2"),
        )
    n, spread = tally.finite, tally.minimum != tally.maximum and tally.m2 > 0
    return {
        "mean": ldexp(tally.mean, tally.exponent) if tally.minimum != tally.maximum else tally.minimum,
        "std": std,
        "min": tally.minimum,
        "max": tally.maximum,
        "abs_max": max(abs(tally.minimum), abs(tally.maximum)),
        "skewness": sqrt(n) * tally.m3 / tally.m2**1.5 if spread else None,
        "kurtosis": n * tally.m4 / tally.m2**2 - 3.0 if spread else None,
        "l1": _unscaled(tally.l1, tally.exponent),
        "l2": _unscaled(sqrt(tally.m2 + n * tally.mean**2), tally.exponent),
    }


def _unscaled(value: float, exponent: int) -> float | None:
    """None for a norm beyond float64."""
    try:
        return ldexp(value, exponent)
    except OverflowError:
        return None


def _near_zero(tally: Tally, bins: Bins, std: float) -> float:
    bound = NEAR_ZERO * std
    if not bound:
        return tally.zeros
    # Values of −bound itself are not near: the next number up is the first that is.
    up_to, from_ = bins.below(np.array([bound, np.nextafter(-bound, 0.0)])).tolist()
    return max(up_to - from_, tally.zeros)


def _quantiles(bins: Bins) -> dict[str, float] | None:
    if not bins.total:
        return None
    return dict(zip(QUANTILES, bins.quantiles([float(text) for text in QUANTILES]), strict=True))


def _resolution(tally: Tally, bins: Bins) -> float:
    return 0.0 if np.array_equal(bins.lower, bins.upper) else SYMBOLS[tally.symbol].resolution


def _histogram(tally: Tally, bins: Bins) -> dict[str, list[Any]] | None:
    """Equal widths from the minimum to the maximum; one bin where all values are equal."""
    if not bins.total:
        return None
    if tally.minimum == tally.maximum:
        return {"edges": [tally.minimum, tally.maximum], "counts": [bins.total]}
    # Halved and doubled, for ranges as wide as float64.
    edges = 2 * np.linspace(tally.minimum / 2, tally.maximum / 2, HISTOGRAM_BINS + 1)
    below = np.rint(bins.below(edges[1:-1]))
    counts = np.diff(below, prepend=0, append=bins.total)
    return {"edges": edges.tolist(), "counts": counts.astype(np.int64).tolist()}


def _entropy(tally: Tally) -> Figures:
    symbol = SYMBOLS[tally.symbol]
    if not tally.count:
        return {"entropy_bits": None, "entropy_symbol_bits": symbol.bits, "compressibility": None}
    symbols = stored_symbols(symbol, tally.codes)
    counts = tally.counts if symbols is tally.codes else _regrouped(symbols, tally.counts)
    shares = counts / tally.count
    # + 0.0: of a single symbol it is 0, not −0.
    entropy = float(-(shares * np.log2(shares)).sum()) + 0.0
    return {"entropy_bits": entropy, "entropy_symbol_bits": symbol.bits, "compressibility": 1 - entropy / symbol.bits}


def _regrouped(symbols: NDArray[np.uint32], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    order = np.argsort(symbols, kind="stable")
    ordered = symbols[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    return np.add.reduceat(counts[order], starts)


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
