"""Quantization potential: signal-to-quantization-noise ratio (SQNR, in dB), largest error and size in each format.

Values are actually quantized and dequantized (`number_formats`): with one scale per tensor from the counts of the
tally; in deep scans, with one scale per row and per group of 128 values along a row, from the values. A scale takes 4
bytes. An outlier is more than 6 standard deviations from the mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf, isfinite, ldexp, log10, sqrt
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.distribution import ranges_of
from torchgauge.weights.number_formats import FORMATS, GROUP_SIZE, Format
from torchgauge.weights.passes import no_errors, quantization_errors, weighted_errors
from torchgauge.weights.rows import Rows, common_exponent, scaled_blocks
from torchgauge.weights.symbols import SYMBOLS
from torchgauge.weights.tally import Tally

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Quantization, Quantized

    # By the name of a format, then by granularity.
    ByFormat = dict[str, dict[str, Quantized]]

SQNR_LEVELS_DB = (30, 20)
OUTLIER_STD = 6.0
SCALE_BYTES = 4

Floats = NDArray[np.float64]


def tensor_quantization(tally: Tally, *, exact_values: Floats | None = None) -> Quantization:
    """With one scale per tensor. `resolution` is the relative width of the ranges that were counted; 0 means exact.
    `sqnr_db` is null if nothing is lost (`max_error` is 0), and for all zeros."""
    ranges = ranges_of(tally, exact_values=exact_values)
    signal, errors, exponent = 0.0, None, 0
    share, threshold = None, inf
    if ranges:
        points, exponent = ranges.points(), ranges.exponent
        signal = float(ranges.counts @ ranges.mean_squares())
        errors = weighted_errors(*points, ranges.peak, tally.count) if signal else no_errors()
        # `outlier_threshold` is a distance from the mean; null if it exceeds float64.
        values, weights = points
        threshold = OUTLIER_STD * ldexp(sqrt(tally.m2 / tally.finite), tally.exponent)
        limit = ldexp(threshold, -exponent)
        mean = ldexp(tally.mean, tally.exponent - exponent)
        low, high = ldexp(tally.minimum, -exponent), ldexp(tally.maximum, -exponent)
        # The extremes are exact, the points are not: without an extreme beyond the limit there is no outlier.
        has_outliers = tally.minimum != tally.maximum and max(high - mean, mean - low) > limit
        share = float(weights[np.abs(values - mean) > limit].sum() / weights.sum()) if has_outliers else 0.0
    by_format: ByFormat = {
        format.name: {"per_tensor": _error_figures(signal, errors, number, exponent, (tally.count, 1))}
        for number, format in enumerate(FORMATS)
    }
    return {
        **cast("Quantization", by_format),
        "outlier_share": share,
        "outlier_threshold": threshold if isfinite(threshold) else None,
        "resolution": SYMBOLS[tally.symbol].resolution if exact_values is None else 0.0,
        **_smallest_formats(by_format, has_signal=signal > 0),
    }


def row_quantization(rows: Rows, per_tensor: Quantization) -> Quantization:
    """The figures `per_tensor`, extended by one scale per row (`per_channel`; for a vector one for all) and one per 128
    values; the smallest formats are then chosen at the best granularity."""
    count, columns = rows.shape
    elements, groups = count * columns, count * -(-columns // GROUP_SIZE) if columns > 1 else -(-count // GROUP_SIZE)
    exponent, errors = common_exponent(rows), quantization_errors(count, columns)
    blocks = scaled_blocks(rows, exponent)
    for block in _as_groups(blocks) if columns == 1 else blocks:
        errors.add(block)
    by_format: ByFormat = {}
    for number, format in enumerate(FORMATS):
        whole = cast("ByFormat", per_tensor)[format.name]["per_tensor"]
        by_row = whole.copy()
        if columns > 1:
            by_row = _error_figures(errors.signal, errors.rows, number, exponent, (elements, count))
        by_group = _error_figures(errors.signal, errors.groups, number, exponent, (elements, groups))
        by_format[format.name] = {"per_tensor": whole, "per_channel": by_row, "group128": by_group}
    smallest = _smallest_formats(by_format, has_signal=errors.signal > 0)
    return {**per_tensor, **cast("Quantization", by_format), **smallest}


def _as_groups(blocks: Iterable[NDArray[np.floating]]) -> Iterator[NDArray[np.floating]]:
    """A vector as rows of 128, wherever its blocks end; the last may be shorter."""
    rest: NDArray[np.floating] | None = None
    for block in blocks:
        values = block.ravel() if rest is None else np.concatenate([rest, block.ravel()])
        whole = len(values) // GROUP_SIZE * GROUP_SIZE
        yield values[:whole].reshape(-1, GROUP_SIZE)
        rest = values[whole:].copy()
    if rest is not None and rest.size:
        yield rest[None]


def _error_figures(
    signal: float, errors: Floats | None, number: int, exponent: int, sizes: tuple[int, int]
) -> Quantized:
    """`sizes` are the numbers of elements and scales; `errors` is None if there are no finite values."""
    elements, scales = sizes
    noise, worst = (0.0, None) if errors is None or not elements else errors[:, number]
    return {
        "sqnr_db": 10 * log10(signal / noise) if signal and noise else None,
        "max_error": None if worst is None else ldexp(worst, exponent),
        "bytes": -(-elements * FORMATS[number].bits // 8) + SCALE_BYTES * scales,
    }


def _smallest_formats(by_format: ByFormat, *, has_signal: bool) -> Quantization:
    """The size at the best granularity of each format; and for each SQNR level the format with the fewest bits, among
    those the one with the highest SQNR. No format is named for all zeros."""

    def sqnr_db(of: Quantized) -> float:
        return inf if of["sqnr_db"] is None else float(of["sqnr_db"])

    best: list[tuple[Format, str, Quantized]] = [
        (format, *max(by_format[format.name].items(), key=lambda item: sqnr_db(item[1]))) for format in FORMATS
    ]
    bytes_after: dict[str, int | None] = {format.name: of["bytes"] for format, _, of in best}
    smallest: dict[str, str | None] = {}
    for level in SQNR_LEVELS_DB:
        key = f"smallest_{level}db"
        enough = [each for each in best if has_signal and sqnr_db(each[2]) >= level]
        smallest |= {key: None, f"{key}_granularity": None}
        bytes_after[key] = None
        if enough:
            format, granularity, of = min(enough, key=lambda each: (each[0].bits, -sqnr_db(each[2])))
            smallest |= {key: format.name, f"{key}_granularity": granularity}
            bytes_after[key] = of["bytes"]
    return cast("Quantization", {**smallest, "bytes_after": bytes_after})
