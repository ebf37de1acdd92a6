"""Tally: the counts and moments of one pass over stored values. Tallies of pieces add up to the tally of a tensor.

Moments combine after P. Pébay, "Formulas for robust, one-pass parallel computation of covariances and arbitrary-order
statistical moments", Sandia report SAND2008-6212, 2008: equations 2.1, 3.1 for orders 2 to 4.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import dataclass, fields, replace
from math import ldexp
from typing import Any, NamedTuple
from zlib import compress, decompress

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.symbols import FLOAT32, SYMBOLS, Symbol, code_bounds, subnormal_of, symbol_of, values_of

Codes = NDArray[np.uint32]
Counts = NDArray[np.int64]
Floats = NDArray[np.float64]


class Moments(NamedTuple):
    """Moments of `n` values in units of 2**exponent: mean, sums of powers of the distances to it, sum of magnitudes."""

    n: int
    mean: float = 0.0
    m2: float = 0.0
    m3: float = 0.0
    m4: float = 0.0
    l1: float = 0.0
    exponent: int = 0


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of the stored symbols, and moments of the finite values.

    `symbol` is the key in `SYMBOLS` that `codes` belong to. `codes` are those that occur, ascending, with their
    `counts`. Complex numbers are counted by part, so `count` may be twice the number of elements.

    `mean` is over the finite values; `m2, m3, m4` are sums of powers of the distances to it, `l1` the sum of
    magnitudes. All five are in units of 2**exponent (squared, cubed, …), so that extreme float64 values neither
    overflow nor vanish. Without finite values, `minimum` is +inf and `maximum` −inf.
    """

    symbol: str
    count: int
    nan: int
    inf: int
    zeros: int
    subnormal: int
    minimum: float
    maximum: float
    mean: float
    m2: float
    m3: float
    m4: float
    l1: float
    codes: Codes
    counts: Counts
    exponent: int = 0

    @property
    def finite(self) -> int:
        return self.count - self.nan - self.inf

    @property
    def moments(self) -> Moments:
        return Moments(self.finite, self.mean, self.m2, self.m3, self.m4, self.l1, self.exponent)


def empty_tally(dtype: str) -> Tally:
    codes, counts = np.empty(0, dtype=np.uint32), np.empty(0, dtype=np.int64)
    return Tally(
        symbol_of(dtype).name, 0, 0, 0, 0, 0, float("inf"), float("-inf"), 0.0, 0.0, 0.0, 0.0, 0.0, codes, counts
    )


def tally_of_counts(symbol: Symbol, codes: Codes, counts: Counts) -> Tally:
    """The tally of an exact symbol. It depends on the counts alone, not on the order in which they were added."""
    assert symbol.pattern is not None
    values = values_of(symbol.pattern)[codes]
    is_finite = np.isfinite(values)
    finite, finite_counts = (values, counts) if is_finite.all() else (values[is_finite], counts[is_finite])
    n, mean, m2, m3, m4, l1, exponent = moments_of_counts(finite, finite_counts)
    count, nan = int(counts.sum()), int(counts[np.isnan(values)].sum())
    return Tally(
        symbol=symbol.name,
        count=count,
        nan=nan,
        inf=count - nan - n,
        zeros=int(counts[values == 0].sum()),
        subnormal=int(counts[subnormal_of(symbol.pattern)[codes]].sum()),
        # + 0.0 turns −0 into 0.
        minimum=float(finite.min(initial=np.inf)) + 0.0,
        maximum=float(finite.max(initial=-np.inf)) + 0.0,
        mean=mean, m2=m2, m3=m3, m4=m4, l1=l1, exponent=exponent,
        codes=codes,
        counts=counts,
    )  # fmt: skip


def merge_tallies(first: Tally, second: Tally) -> Tally:
    """The tally of both together; they must have the same symbol. Counts are exact, whatever the order."""
    if first.symbol != second.symbol:
        raise ValueError(f"cannot merge tallies of {first.symbol} and {second.symbol}: use `to_float32_codes` first")
    if not first.count or not second.count:
        return first if first.count else second
    if np.array_equal(first.codes, second.codes):
        codes, counts = first.codes, first.counts + second.counts
    else:
        codes, counts = sum_by_code(
            np.concatenate((first.codes, second.codes)), np.concatenate((first.counts, second.counts))
        )
    symbol = SYMBOLS[first.symbol]
    if symbol.pattern is not None:
        return tally_of_counts(symbol, codes, counts)
    _, mean, m2, m3, m4, l1, exponent = combine_moments(first.moments, second.moments)
    return Tally(
        symbol=first.symbol,
        count=first.count + second.count,
        nan=first.nan + second.nan,
        inf=first.inf + second.inf,
        zeros=first.zeros + second.zeros,
        subnormal=first.subnormal + second.subnormal,
        minimum=min(first.minimum, second.minimum),
        maximum=max(first.maximum, second.maximum),
        mean=mean, m2=m2, m3=m3, m4=m4, l1=l1, exponent=exponent,
        codes=codes,
        counts=counts,
    )  # fmt: skip


def sum_by_code(codes: Codes, counts: Counts) -> tuple[Codes, Counts]:
    """Ascending codes, each once, with the sum of its counts."""
    if not len(codes):
        return codes, counts
    # Two ascending runs: the stable sort merges them in linear time.
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    return ordered[starts], np.add.reduceat(counts[order], starts)


def to_float32_codes(tally: Tally) -> Tally:
    """The same values counted by float32 codes, so that tallies of different types can be merged.

    Values beyond float32 get its outermost finite codes, smaller ones the codes that touch 0; everything else in the
    tally is unchanged. A range of another type is within a range of float32, or is assigned by its middle.
    """
    if tally.symbol == FLOAT32.name:
        return tally
    symbol = SYMBOLS[tally.symbol]
    if symbol.pattern is not None:
        values = values_of(symbol.pattern)[tally.codes]
    else:
        lower, upper = code_bounds(symbol, tally.codes)
        # Without bounds: ±inf or NaN, the float64 codes with the largest exponent. A code for both counts as ±inf.
        mantissa, is_negative = tally.codes & np.uint32(0xFF), (tally.codes >> np.uint32(19)) != 0
        specials = np.where(mantissa != 0, np.nan, np.where(is_negative, -np.inf, np.inf))
        # A float range truncates to one float32 code; an integer range can straddle two.
        values = np.where(np.isnan(lower), specials, lower / 2 + upper / 2)
    # Truncate instead of rounding, so that a value stays in its range.
    largest = float(np.finfo(np.float32).max)
    clipped = np.where(np.isfinite(values), np.clip(values, -largest, largest), values)
    nearest = clipped.astype(np.float32)
    is_rounded_away = np.abs(nearest.astype(np.float64)) > np.abs(clipped)
    bits = nearest.view(np.uint32) - is_rounded_away.astype(np.uint32)
    codes, counts = sum_by_code(bits >> np.uint32(16), tally.counts)
    return replace(tally, symbol=FLOAT32.name, codes=codes, counts=counts)


def combine_moments(a: Moments, b: Moments) -> Moments:
    if not a.n or not b.n:
        return a if a.n else b
    if a.exponent != b.exponent:
        # The larger unit of the two; all-zero values fit any unit.
        exponent = max((moments.exponent for moments in (a, b) if moments.l1), default=0)
        a, b = _rescale(a, exponent), _rescale(b, exponent)
    powers = combine_powers(float(a.n), a.mean, a.m2, a.m3, a.m4, float(b.n), b.mean, b.m2, b.m3, b.m4)
    return Moments(a.n + b.n, *powers, a.l1 + b.l1, a.exponent)


def _rescale(moments: Moments, exponent: int) -> Moments:
    if moments.exponent == exponent or not moments.l1:
        return moments._replace(exponent=exponent)
    by = moments.exponent - exponent
    n, mean, m2, m3, m4, l1, _ = moments
    return Moments(n, ldexp(mean, by), ldexp(m2, 2 * by), ldexp(m3, 3 * by), ldexp(m4, 4 * by), ldexp(l1, by), exponent)


def combine_powers(
    n: float, mean: float, m2: float, m3: float, m4: float,
    other_n: float, other_mean: float, other_m2: float, other_m3: float, other_m4: float,
) -> tuple[float, float, float, float]:  # fmt: skip
    """Mean, m2, m3, m4 of both together. Plain arithmetic, because the kernels compile this function."""
    both = n * other_n
    delta = other_mean - mean
    step = delta / (n + other_n)
    fourth = both * (n * n - both + other_n * other_n) * delta * step * step * step
    fourth += 6.0 * step * step * (n * n * other_m2 + other_n * other_n * m2)
    fourth += 4.0 * step * (n * other_m3 - other_n * m3)
    third = both * (n - other_n) * delta * step * step + 3.0 * step * (n * other_m2 - other_n * m2)
    return (mean + other_n * step, m2 + other_m2 + both * delta * step, m3 + other_m3 + third, m4 + other_m4 + fourth)


def moments_of_counts(values: Floats, counts: Counts) -> Moments:
    """Moments of values that occur `counts` times. numpy sums pairwise, so the error is about one rounding."""
    n = int(counts.sum())
    if not n:
        return Moments(0)
    weights = counts.astype(np.float64)
    mean = float((values * weights).sum()) / n
    distance = values - mean
    # The mean is rounded; without this correction its error would show in the powers of values far from 0.
    correction = float((distance * weights).sum()) / n
    distance -= correction
    square = distance * distance
    weighted = square * weights
    return Moments(
        n,
        mean + correction,
        float(weighted.sum()),
        float((weighted * distance).sum()),
        float((weighted * square).sum()),
        float((np.abs(values) * weights).sum()),
    )


_FLOAT_FIELDS = frozenset({"minimum", "maximum", "mean", "m2", "m3", "m4", "l1"})


def tally_to_json(tally: Tally) -> dict[str, Any]:
    """A compact, bit-exact form for the journal: floats as hex, codes and counts compressed."""
    row: dict[str, Any] = {field.name: getattr(tally, field.name) for field in fields(tally)}
    row |= {name: value.hex() for name, value in row.items() if isinstance(value, float)}
    steps = np.diff(tally.codes, prepend=np.uint32(0)).astype("<u4")
    return row | {"codes": _compress(steps), "counts": _compress(tally.counts.astype("<i8"))}


def tally_from_json(row: dict[str, Any]) -> Tally:
    floats = {name: float.fromhex(value) for name, value in row.items() if name in _FLOAT_FIELDS}
    codes = np.cumsum(_decompress(row["codes"], "<u4"), dtype=np.uint32)
    return Tally(**row | floats | {"codes": codes, "counts": _decompress(row["counts"], "<i8").astype(np.int64)})


def _compress(array: NDArray[np.integer]) -> str:
    """Bytes of equal significance are grouped: most are 0 and compress well."""
    planes = array.view(np.uint8).reshape(len(array), array.itemsize).T
    return b64encode(compress(planes.tobytes(), 1)).decode("ascii")


def _decompress(text: str, dtype: str) -> NDArray[np.integer]:
    planes = np.frombuffer(decompress(b64decode(text)), dtype=np.uint8).reshape(np.dtype(dtype).itemsize, -1)
    return np.ascontiguousarray(planes.T).reshape(-1).view(dtype)
