"""Mean and central powers of values, and how those of two sets combine.

After P. Pébay, "Formulas for robust, one-pass parallel computation of covariances and arbitrary-order statistical
moments", Sandia report SAND2008-6212, 2008: equations 2.1, 3.1 for the orders 2 to 4.
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


class Moments(NamedTuple):
    """Of `n` values in units of 2**exponent: mean, sums of powers of the distances to it, sum of magnitudes."""

    n: int
    mean: float = 0.0
    m2: float = 0.0
    m3: float = 0.0
    m4: float = 0.0
    l1: float = 0.0
    exponent: int = 0


def combine_moments(a: Moments, b: Moments) -> Moments:
    if not a.n or not b.n:
        return a if a.n else b
    a, b = _in_one_unit(a, b)
    powers = combine_powers(float(a.n), a.mean, a.m2, a.m3, a.m4, float(b.n), b.mean, b.m2, b.m3, b.m4)
    return Moments(a.n + b.n, *powers, a.l1 + b.l1, a.exponent)


def combine_powers(
    n: float, mean: float, m2: float, m3: float, m4: float,
    other_n: float, other_mean: float, other_m2: float, other_m3: float, other_m4: float,
) -> tuple[float, float, float, float]:  # fmt: skip
    """Mean, m2, m3, m4 of both together. Plain arithmetic: the kernels compile it as it is."""
    both = n * other_n
    delta = other_mean - mean
    step = delta / (n + other_n)
    fourth = both * (n * n - both + other_n * other_n) * delta * step * step * step
    fourth += 6.0 * step * step * (n * n * other_m2 + other_n * other_n * m2)
    fourth += 4.0 * step * (n * other_m3 - other_n * m3)
    third = both * (n - other_n) * delta * step * step + 3.0 * step * (n * other_m2 - other_n * m2)
    return (
        mean + other_n * step,
        m2 + other_m2 + both * delta * step,
        m3 + other_m3 + third,
        m4 + other_m4 + fourth,
    )


def moments_of_counts(values: NDArray[np.float64], counts: NDArray[np.int64]) -> Moments:
    """Of values that occur `counts` times. numpy adds pairwise: what is lost is of the order of one rounding."""
    n = int(counts.sum())
    if not n:
        return Moments(0)
    weights = counts.astype(np.float64)
    mean = float((values * weights).sum()) / n
    distance = values - mean
    # The mean is rounded; its error would show in the powers of values far from 0.
    rest = float((distance * weights).sum()) / n
    distance -= rest
    square = distance * distance
    weighted = square * weights
    return Moments(
        n,
        mean + rest,
        float(weighted.sum()),
        float((weighted * distance).sum()),
        float((weighted * square).sum()),
        float((np.abs(values) * weights).sum()),
    )


def _in_one_unit(a: Moments, b: Moments) -> tuple[Moments, Moments]:
    """Both in the larger unit; zeros alone have none."""
    if a.exponent == b.exponent:
        return a, b
    exponent = max((moments.exponent for moments in (a, b) if moments.l1), default=0)
    return _in_unit(a, exponent), _in_unit(b, exponent)


def _in_unit(moments: Moments, exponent: int) -> Moments:
    if moments.exponent == exponent or not moments.l1:
        return moments._replace(exponent=exponent)
    by = moments.exponent - exponent
    n, mean, m2, m3, m4, l1, _ = moments
    return Moments(n, ldexp(mean, by), ldexp(m2, 2 * by), ldexp(m3, 3 * by), ldexp(m4, 4 * by), ldexp(l1, by), exponent)


Codes = NDArray[np.uint32]
Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of the stored symbols, and moments of the finite values.

    `symbol` is the kind of symbol in `codes` (a key of `symbols.SYMBOLS`): the whole bit pattern for types up to
    16 bits, the upper bits for wider ones. `codes` are those that occur, ascending, `counts` how often. Complex numbers
    are tallied by their parts, so `count` may be twice the elements.

    `mean` is that of the finite values and `m2, m3, m4` are sums of powers of their distances to it; `l1` is the sum of
    magnitudes. All five are in units of 2**exponent (squared, cubed, …), so that float64 extremes neither overflow nor
    vanish. `minimum` is +inf and `maximum` −inf where no value is finite.
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


def empty(dtype: str) -> Tally:
    codes, counts = np.empty(0, dtype=np.uint32), np.empty(0, dtype=np.int64)
    return Tally(
        symbol_of(dtype).name, 0, 0, 0, 0, 0, float("inf"), float("-inf"), 0.0, 0.0, 0.0, 0.0, 0.0, codes, counts
    )


def of_patterns(symbol: Symbol, codes: Codes, counts: Counts) -> Tally:
    """The tally of values of an exact symbol. It depends on the counts alone, not on how they came together."""
    assert symbol.pattern is not None
    values = values_of(symbol.pattern)[codes]
    numbers = np.isfinite(values)
    finite, often = (values, counts) if numbers.all() else (values[numbers], counts[numbers])
    n, mean, m2, m3, m4, l1, exponent = moments_of_counts(finite, often)
    count, nan = int(counts.sum()), int(counts[np.isnan(values)].sum())
    return Tally(
        symbol=symbol.name,
        count=count,
        nan=nan,
        inf=count - nan - n,
        zeros=int(counts[values == 0].sum()),
        subnormal=int(counts[subnormal_of(symbol.pattern)[codes]].sum()),
        # + 0.0: a minimum of −0 is 0.
        minimum=float(finite.min(initial=np.inf)) + 0.0,
        maximum=float(finite.max(initial=-np.inf)) + 0.0,
        mean=mean, m2=m2, m3=m3, m4=m4, l1=l1, exponent=exponent,
        codes=codes,
        counts=counts,
    )  # fmt: skip


def merge(first: Tally, second: Tally) -> Tally:
    """The tally of both together; of the same kind of symbol. Integers are exact, whatever the order."""
    if first.symbol != second.symbol:
        raise ValueError(f"tallies of {first.symbol} and {second.symbol} do not add up: `regrid` them first")
    if not first.count or not second.count:
        return first if first.count else second
    codes, counts = _add(first, second)
    symbol = SYMBOLS[first.symbol]
    if symbol.pattern is not None:
        return of_patterns(symbol, codes, counts)
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


def regrid(tally: Tally) -> Tally:
    """The same values with the codes of float32, so that tallies of different types add up.

    Values beyond float32 get its outermost finite codes, those below it the ones that touch 0; all else of the tally
    stays as it is. A range of another type's values lies in one of float32's, or is put where its middle is."""
    if tally.symbol == FLOAT32.name:
        return tally
    symbol = SYMBOLS[tally.symbol]
    if symbol.pattern is not None:
        values = values_of(symbol.pattern)[tally.codes]
    else:
        lower, upper = code_bounds(symbol, tally.codes)
        # A float's range is its code's in float32 by truncation; a whole number's lies askew by one.
        values = np.where(np.isnan(lower), _no_numbers(tally), lower / 2 + upper / 2)
    codes, counts = _gather(_float32_codes(values), tally.counts)
    return replace(tally, symbol=FLOAT32.name, codes=codes, counts=counts)


def to_json(tally: Tally) -> dict[str, Any]:
    """A compact form for the journal and the cluster: counts as text of compressed bytes, floats to the last bit."""
    row: dict[str, Any] = {field.name: getattr(tally, field.name) for field in fields(tally)}
    row |= {name: value.hex() for name, value in row.items() if isinstance(value, float)}
    steps = np.diff(tally.codes, prepend=np.uint32(0)).astype("<u4")
    return row | {"codes": _pack(steps), "counts": _pack(tally.counts.astype("<i8"))}


def from_json(row: dict[str, Any]) -> Tally:
    texts = {name: float.fromhex(value) for name, value in row.items() if name in _FLOATS}
    codes = np.cumsum(_unpack(row["codes"], "<u4"), dtype=np.uint32)
    return Tally(**row | texts | {"codes": codes, "counts": _unpack(row["counts"], "<i8").astype(np.int64)})


_FLOATS = frozenset({"minimum", "maximum", "mean", "m2", "m3", "m4", "l1"})


def _pack(array: NDArray[Any]) -> str:
    """Bytes of equal weight side by side: most are 0 and compress well."""
    planes = array.view(np.uint8).reshape(len(array), array.itemsize).T
    return b64encode(compress(planes.tobytes(), 1)).decode("ascii")


def _unpack(text: str, dtype: str) -> NDArray[Any]:
    planes = np.frombuffer(decompress(b64decode(text)), dtype=np.uint8).reshape(np.dtype(dtype).itemsize, -1)
    return np.ascontiguousarray(planes.T).reshape(-1).view(dtype)


def _add(first: Tally, second: Tally) -> tuple[Codes, Counts]:
    if np.array_equal(first.codes, second.codes):
        return first.codes, first.counts + second.counts
    return _gather(np.concatenate((first.codes, second.codes)), np.concatenate((first.counts, second.counts)))


def _gather(codes: Codes, counts: Counts) -> tuple[Codes, Counts]:
    """One count for each code, ascending."""
    if not len(codes):
        return codes, counts
    # Two ascending runs: the stable sort merges them in linear time.
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    return ordered[starts], np.add.reduceat(counts[order], starts)


def _no_numbers(tally: Tally) -> NDArray[np.float64]:
    """±inf or NaN for the float64 codes with the largest exponent; what a code may hold of both goes to ±inf."""
    mantissa, negative = tally.codes & np.uint32(0xFF), (tally.codes >> np.uint32(19)) != 0
    return np.where(mantissa != 0, np.nan, np.where(negative, -np.inf, np.inf))


def _float32_codes(values: NDArray[np.float64]) -> Codes:
    """Truncated, not rounded, to float32 and its upper half: a value stays in the range it lies in."""
    largest = float(np.finfo(np.float32).max)
    inside = np.where(np.isfinite(values), np.clip(values, -largest, largest), values)
    near = inside.astype(np.float32)
    bits = near.view(np.uint32)
    # One pattern nearer to 0 where rounding went away from it.
    bits = bits - (np.abs(near.astype(np.float64)) > np.abs(inside)).astype(np.uint32)
    return bits >> np.uint32(16)
