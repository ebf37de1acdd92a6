"""Symbols: the units that are counted, and their values.

Types of up to 16 bits are counted by their whole bit pattern, so every statistic follows exactly. Wider types are
counted by their leading bits:

| types | code | entropy is over |
|---|---|---|
| up to 16 bits | the bit pattern | the pattern |
| float32 | the upper 16 bits (7 mantissa bits) | the code |
| float64 | the upper 20 bits (8 mantissa bits) | the upper 16 bits |
| int32, int64, uint32, uint64 | a logarithmic grid with 8 mantissa bits, exact below 512 | the upper 16 stored bits |

Complex types are counted by their real and imaginary parts, sub-byte types by value (lowest bits of a byte first).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from torchgauge.errors import FormatError

if TYPE_CHECKING:
    from torchgauge.weights.tally import Tally

Floats = NDArray[np.float64]
Codes = NDArray[np.uint32]
Bounds = tuple[Floats, Floats]

# The integer grid: of v the magnitude is u = v, or ~v where v is negative, so that both signs have the same cells. A
# cell of 2**k numbers keeps the leading 9 bits of u; k is at most `shift`, the number of bits below the upper 16:
#
#     code = k·256 + (u >> k),  k = min(max(bit_length(u) − 9, 0), shift);  |v| < 512 is exact
INTEGER_MANTISSA_BITS = 8
# Above every code of a magnitude: 48·256 + 65,535 for unsigned 64-bit numbers.
INTEGER_SIGN = 1 << 17


@dataclass(frozen=True, slots=True)
class Minifloat:
    """Sign, exponent, mantissa. `specials` says which codes are NaN or infinite:

    ieee   the largest exponent is inf (mantissa 0) or NaN
    fn     no inf; NaN is every bit below the sign set
    fnuz   no inf and no −0, whose code is the only NaN
    none   every code is a number
    """

    exponent_bits: int
    mantissa_bits: int
    bias: int
    specials: str

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits

    def values(self) -> Floats:
        """The value of every code, NaN and ±inf included."""
        codes, exponent, mantissa = self._fields()
        fraction = np.where(exponent == 0, mantissa, mantissa + (1 << self.mantissa_bits))
        power = np.maximum(exponent, 1) - self.bias - self.mantissa_bits
        magnitude = np.ldexp(fraction.astype(np.float64), power)
        sign = 1 << (self.bits - 1)
        values = np.where(codes & sign, -magnitude, magnitude)
        if self.specials == "ieee":
            top = exponent == (1 << self.exponent_bits) - 1
            values[top] = np.where(codes[top] & sign, -np.inf, np.inf)
            values[top & (mantissa != 0)] = np.nan
        elif self.specials == "fn":
            values[(codes & (sign - 1)) == sign - 1] = np.nan
        elif self.specials == "fnuz":
            values[sign] = np.nan
        return values

    def subnormal(self) -> NDArray[np.bool_]:
        _, exponent, mantissa = self._fields()
        return (exponent == 0) & (mantissa != 0)

    def _fields(self) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
        codes = np.arange(1 << self.bits, dtype=np.int32)
        exponent = (codes >> self.mantissa_bits) & ((1 << self.exponent_bits) - 1)
        return codes, exponent, codes & ((1 << self.mantissa_bits) - 1)


@dataclass(frozen=True, slots=True)
class PowerOfTwo:
    """float8_e8m0fnu: an exponent without mantissa, used for block scales; 255 is NaN."""

    bits: int = 8

    def values(self) -> Floats:
        values = np.ldexp(1.0, np.arange(256) - 127)
        values[255] = np.nan
        return values

    def subnormal(self) -> NDArray[np.bool_]:
        return np.zeros(256, dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class Integer:
    """Two's complement if signed."""

    bits: int
    signed: bool = False

    def values(self) -> Floats:
        codes = np.arange(1 << self.bits)
        return np.where(self.signed & (codes >> (self.bits - 1)), codes - (1 << self.bits), codes).astype(np.float64)

    def subnormal(self) -> NDArray[np.bool_]:
        return np.zeros(1 << self.bits, dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class Boolean:
    """One byte; every value but 0 is true."""

    bits: int = 8

    def values(self) -> Floats:
        return (np.arange(256) != 0).astype(np.float64)

    def subnormal(self) -> NDArray[np.bool_]:
        return np.zeros(256, dtype=np.bool_)


Pattern = Minifloat | PowerOfTwo | Integer | Boolean


@cache
def values_of(pattern: Pattern) -> Floats:
    """The value of every code, computed once and read-only."""
    values = pattern.values()
    values.flags.writeable = False
    return values


@cache
def subnormal_of(pattern: Pattern) -> NDArray[np.bool_]:
    """Whether each code is a subnormal number, computed once and read-only."""
    subnormal = pattern.subnormal()
    subnormal.flags.writeable = False
    return subnormal


@dataclass(frozen=True, slots=True)
class Symbol:
    """How a type is counted.

    `bits`: width of the symbol that the entropy is over. `item_bits`: width of a stored value (of one part, if
    complex). Codes are below 2**`code_bits`. `resolution`: relative width of the range of values that share a code; 0
    for exact symbols, which have a `pattern`.
    """

    name: str
    bits: int
    item_bits: int
    code_bits: int
    resolution: float = 0.0
    pattern: Pattern | None = None

    @property
    def shift(self) -> int:
        """Stored bits below the upper 16; 0 for types of up to 16 bits."""
        return self.item_bits - self.bits


def _exact(name: str, pattern: Pattern) -> Symbol:
    return Symbol(name, pattern.bits, pattern.bits, pattern.bits, pattern=pattern)


def _integer(name: str, item_bits: int) -> Symbol:
    return Symbol(name, 16, item_bits, 18, 2.0**-INTEGER_MANTISSA_BITS)


FLOAT32 = Symbol("float32", 16, 32, 16, 2.0**-7)
FLOAT64 = Symbol("float64", 16, 64, 20, 2.0**-8)
_DISTINCT = (
    FLOAT32, FLOAT64,
    _exact("float16", Minifloat(5, 10, 15, "ieee")), _exact("bfloat16", Minifloat(8, 7, 127, "ieee")),
    _exact("float8_e4m3fn", Minifloat(4, 3, 7, "fn")), _exact("float8_e5m2", Minifloat(5, 2, 15, "ieee")),
    _exact("float8_e4m3fnuz", Minifloat(4, 3, 8, "fnuz")), _exact("float8_e5m2fnuz", Minifloat(5, 2, 16, "fnuz")),
    _exact("float8_e8m0fnu", PowerOfTwo()), _exact("float4_e2m1fn_x2", Minifloat(2, 1, 1, "none")),
    _exact("bool", Boolean()), _exact("int8", Integer(8, signed=True)), _exact("uint8", Integer(8)),
    _exact("int16", Integer(16, signed=True)), _exact("uint16", Integer(16)),
    _exact("quint4x2", Integer(4)), _exact("quint2x4", Integer(2)), _exact("bits1x8", Integer(1)),
    *(_integer(name, 32) for name in ("int32", "uint32")), *(_integer(name, 64) for name in ("int64", "uint64")),
)  # fmt: skip
_SAME_AS = {
    "complex32": "float16", "complex64": "float32", "complex128": "float64",
    "qint8": "int8", "quint8": "uint8", "qint32": "int32",
    "bits8": "uint8", "bits16": "uint16", "bits2x4": "quint2x4", "bits4x2": "quint4x2",
    # torch stores these one to a byte.
    **{f"uint{width}": "uint8" for width in range(1, 8)}, **{f"int{width}": "int8" for width in range(1, 8)},
}  # fmt: skip

SYMBOLS: Mapping[str, Symbol] = {
    **{symbol.name: symbol for symbol in _DISTINCT},
    **{name: next(symbol for symbol in _DISTINCT if symbol.name == same) for name, same in _SAME_AS.items()},
}


def symbol_of(dtype: str) -> Symbol:
    try:
        return SYMBOLS[dtype]
    except KeyError:
        raise FormatError(f"cannot read values of type {dtype}: unknown layout") from None


def is_exact(symbol: str | Symbol) -> bool:
    """Whether each code has exactly one value."""
    return (SYMBOLS[symbol] if isinstance(symbol, str) else symbol).pattern is not None


def value_bounds(tally: Tally) -> Bounds:
    """The smallest and largest value of each code of the tally, in the order of its codes.

    NaN for codes without a finite value. For exact symbols the two are equal; otherwise both ends belong to the range,
    which is clipped to the tally's minimum and maximum. In float32 and float64 zeros share a code with tiny numbers:
    they are in the ranges that touch 0, and `tally.zeros` counts them.
    """
    symbol = SYMBOLS[tally.symbol]
    if symbol.pattern is not None:
        values = values_of(symbol.pattern)[tally.codes]
        values = np.where(np.isfinite(values), values, np.nan)
        return values, values
    lower, upper = code_bounds(symbol, tally.codes)
    if tally.minimum > tally.maximum:
        return lower, upper
    # `to_float32_codes` puts values beyond float32 into the outermost ranges, which then reach to the extremes.
    largest = float(np.finfo(np.float32).max)
    upper = np.where(upper == largest, np.maximum(upper, tally.maximum), upper)
    lower = np.where(lower == -largest, np.minimum(lower, tally.minimum), lower)
    return np.clip(lower, tally.minimum, tally.maximum), np.clip(upper, tally.minimum, tally.maximum)


def code_bounds(symbol: Symbol, codes: Codes) -> Bounds:
    """Like `value_bounds`, for any codes of a symbol that is not exact, without clipping."""
    if symbol.name not in ("float32", "float64"):
        smallest, largest = (u.astype(np.float64) for u in _integer_magnitudes(codes, symbol.shift))
        is_negative = (codes & INTEGER_SIGN) != 0
        return np.where(is_negative, -1.0 - largest, smallest), np.where(is_negative, -1.0 - smallest, largest)
    item = np.dtype(f"u{symbol.item_bits // 8}")
    below = symbol.item_bits - symbol.code_bits
    first = codes.astype(item) << item.type(below)
    ends = (first.view(symbol.name), (first | item.type((1 << below) - 1)).view(symbol.name))
    # A code with the largest exponent holds ±inf or NaN, never a number.
    is_number = np.isfinite(ends[0])
    nearest, farthest = (np.where(is_number, end, np.nan).astype(np.float64) for end in ends)
    is_negative = (codes >> np.uint32(symbol.code_bits - 1)) != 0
    return np.where(is_negative, farthest, nearest), np.where(is_negative, nearest, farthest)


def stored_symbols(symbol: Symbol, codes: Codes) -> Codes:
    """The symbols that the entropy is over, from the codes; never finer than the codes."""
    if symbol.name in ("float32", "float64"):
        return codes >> np.uint32(symbol.code_bits - symbol.bits)
    if symbol.pattern is not None:
        return codes
    upper = (_integer_magnitudes(codes, symbol.shift)[0] >> np.uint64(symbol.shift)).astype(np.uint32)
    return np.where(codes & INTEGER_SIGN, ~upper, upper) & np.uint32(0xFFFF)


def _integer_magnitudes(codes: Codes, shift: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The smallest and largest magnitude u in each cell of the integer grid."""
    plain = (codes & (INTEGER_SIGN - 1)).astype(np.int64)
    k = np.clip((plain >> INTEGER_MANTISSA_BITS) - 1, 0, shift)
    leading = (plain - (k << INTEGER_MANTISSA_BITS)).astype(np.uint64)
    width = k.astype(np.uint64)
    lower = leading << width
    return lower, lower + ((np.uint64(1) << width) - np.uint64(1))
