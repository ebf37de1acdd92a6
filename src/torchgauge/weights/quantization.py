"""What quantization would do to a tensor: signal-to-noise in dB, the largest error and the bytes after, in each format.

Everything is quantized and brought back for real (`formats`): per tensor from the counts of the tally; deep, with a
scale per row and per group of 128 values along a row, from the values. A scale takes 4 bytes. An outlier is
more than 6 std from the mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import inf, isfinite, ldexp, log10, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.distribution import Ranges, ranges_of
from torchgauge.weights.number_formats import FORMATS, GROUP
from torchgauge.weights.rows import Rows, common_exponent, scaled_blocks
from torchgauge.weights.symbols import SYMBOLS
from torchgauge.weights.tally import Tally

if TYPE_CHECKING:
    from torchgauge.weights.kernels.quantization import Errors

LIMITS_DB = (30, 20)
OUTLIER_STD = 6.0
SCALE_BYTES = 4

Figure = dict[str, Any]
Floats = NDArray[np.float64]
Points = tuple[Floats, Floats]


def per_tensor(tally: Tally, *, exact_values: Floats | None = None) -> dict[str, Any]:
    """`resolution` is the relative width of the ranges that the counts are of: 0 where every value is known exactly.
    `sqnr_db` is null where nothing is lost (then `max_error` is 0), and where there is nothing but zeros."""
    ranges = ranges_of(tally, exact_values=exact_values)
    signal, errors, exponent = 0.0, None, 0
    outliers: dict[str, float | None] = {"outlier_share": None, "outlier_threshold": None}
    if ranges:
        points, exponent = ranges.points(), ranges.exponent
        signal, errors = _tensor_errors(ranges, points)
        outliers = _outliers(points, tally, exponent)
    found: dict[str, Any] = {
        format.name: {"per_tensor": _figure(signal, errors, number, exponent, (tally.count, 1))}
        for number, format in enumerate(FORMATS)
    }
    found |= outliers | {"resolution": SYMBOLS[tally.symbol].resolution if exact_values is None else 0.0}
    return found | _judge(found, has_signal=signal > 0)


def deep(rows: Rows, found: Mapping[str, Any]) -> dict[str, Any]:
    """`found`, with the figures per channel (a scale for each row; for a vector one for all) and per group of 128; the
    smallest formats are then judged on the granularity that serves each best."""
    count, columns = rows.shape
    elements, groups = count * columns, count * -(-columns // GROUP) if columns > 1 else -(-count // GROUP)
    exponent = common_exponent(rows)
    errors = _row_errors(rows, exponent)
    result = dict(found)
    for number, format in enumerate(FORMATS):
        figures = dict(found[format.name])
        if columns == 1:
            figures["per_channel"] = dict(figures["per_tensor"])
        else:
            figures["per_channel"] = _figure(errors.signal, errors.rows, number, exponent, (elements, count))
        figures["group128"] = _figure(errors.signal, errors.groups, number, exponent, (elements, groups))
        result[format.name] = figures
    return result | _judge(result, has_signal=errors.signal > 0)


def _tensor_errors(ranges: Ranges, points: Points) -> tuple[float, Floats]:
    from torchgauge.weights.kernels.quantization import no_errors, weighted_errors

    signal = float(ranges.counts @ ranges.mean_squares())
    return signal, weighted_errors(*points, ranges.peak) if signal else no_errors()


def _row_errors(rows: Rows, exponent: int) -> Errors:
    from torchgauge.weights.kernels.quantization import Errors

    columns = rows.shape[1]
    errors = Errors(columns)
    blocks = scaled_blocks(rows, exponent)
    for block in _in_groups(blocks) if columns == 1 else blocks:
        errors.add(block)
    return errors


def _in_groups(blocks: Iterable[NDArray[Any]]) -> Iterator[NDArray[Any]]:
    """A vector as rows of 128, wherever its blocks end; the last may be shorter."""
    rest: NDArray[Any] | None = None
    for block in blocks:
        values = block.ravel() if rest is None else np.concatenate([rest, block.ravel()])
        whole = len(values) // GROUP * GROUP
        yield values[:whole].reshape(-1, GROUP)
        rest = values[whole:].copy()
    if rest is not None and rest.size:
        yield rest[None]


def _figure(signal: float, errors: Floats | None, number: int, exponent: int, sizes: tuple[int, int]) -> Figure:
    """`sizes`: elements and scales; without errors there was no value."""
    elements, scales = sizes
    noise, worst = (0.0, None) if errors is None or not elements else errors[:, number]
    return {
        "sqnr_db": 10 * log10(signal / noise) if signal and noise else None,
        "max_error": None if worst is None else ldexp(worst, exponent),
        "bytes": -(-elements * FORMATS[number].bits // 8) + SCALE_BYTES * scales,
    }


def _outliers(points: Points, tally: Tally, exponent: int) -> dict[str, float | None]:
    """`outlier_threshold` is a distance from the mean. One beyond the range of float64 has nothing above it."""
    values, weights = points
    threshold = OUTLIER_STD * ldexp(sqrt(tally.m2 / tally.finite), tally.exponent)
    limit = ldexp(threshold, -exponent)
    mean = ldexp(tally.mean, tally.exponent - exponent)
    low, high = ldexp(tally.minimum, -exponent), ldexp(tally.maximum, -exponent)
    # The extremes are exact, the points are not: without an extreme beyond the limit there is no outlier.
    is_any = tally.minimum != tally.maximum and max(high - mean, mean - low) > limit
    share = weights[np.abs(values - mean) > limit].sum() / weights.sum() if is_any else 0.0
    return {"outlier_share": float(share), "outlier_threshold": threshold if isfinite(threshold) else None}


def _judge(found: Mapping[str, Any], *, has_signal: bool) -> dict[str, Any]:
    """The bytes after, with the granularity that serves each format best, and the smallest formats: that with the
    fewest bits, and of several the one with the most signal; none for zeros alone."""
    best = [(format, *max(found[format.name].items(), key=lambda grain: _signal_db(grain[1]))) for format in FORMATS]
    after = {format.name: figure["bytes"] for format, _, figure in best}
    judged: dict[str, Any] = {}
    for limit in LIMITS_DB:
        kept = [each for each in best if has_signal and _signal_db(each[2]) >= limit]
        format, grain, figure = min(kept, key=lambda each: (each[0].bits, -_signal_db(each[2])), default=_NOTHING)
        key = f"smallest_{limit}db"
        judged |= {key: format and format.name, f"{key}_granularity": grain}
        after[key] = figure and figure["bytes"]
    return judged | {"bytes_after": after}


_NOTHING = (None, None, None)


def _signal_db(figure: Figure) -> float:
    """Without noise, infinite."""
    return inf if figure["sqnr_db"] is None else figure["sqnr_db"]
