"""What each bit pattern of the types up to 16 bits stands for.

A pattern has its `bits`, the `values()` of all its codes (NaN and ±inf where one stands for those), and says which of
them are `subnormal()`.
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


@dataclass(frozen=True, slots=True)
class Minifloat:
    """Sign, exponent, mantissa. `specials` says which codes are no numbers:

    ieee   the largest exponent is inf (mantissa 0) or NaN
    fn     no inf; only the codes with all bits set below the sign are NaN
    fnuz   no inf and no −0: its code is the only NaN
    none   every code is a number
    """

    exponent_bits: int
    mantissa_bits: int
    bias: int
    specials: str

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits

    def values(self) -> NDArray[np.float64]:
        codes, exponent, mantissa = self._fields()
        fraction = np.where(exponent == 0, mantissa, mantissa + (1 << self.mantissa_bits))
        power = np.maximum(exponent, 1) - self.bias - self.mantissa_bits
        magnitude = np.ldexp(fraction.astype(np.float64), power)
        values = np.where(codes >> (self.bits - 1), -magnitude, magnitude)
        return self._with_specials(values, codes, exponent, mantissa)

    def subnormal(self) -> NDArray[np.bool_]:
        _, exponent, mantissa = self._fields()
        return (exponent == 0) & (mantissa != 0)

    def _fields(self) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
        codes = np.arange(1 << self.bits, dtype=np.int32)
        exponent = (codes >> self.mantissa_bits) & ((1 << self.exponent_bits) - 1)
        return codes, exponent, codes & ((1 << self.mantissa_bits) - 1)

    def _with_specials(
        self,
        values: NDArray[np.float64],
        codes: NDArray[np.int32],
        exponent: NDArray[np.int32],
        mantissa: NDArray[np.int32],
    ) -> NDArray[np.float64]:
        sign = 1 << (self.bits - 1)
        if self.specials == "ieee":
            top = exponent == (1 << self.exponent_bits) - 1
            values[top] = np.where(codes[top] & sign, -np.inf, np.inf)
            values[top & (mantissa != 0)] = np.nan
        elif self.specials == "fn":
            values[(codes & (sign - 1)) == sign - 1] = np.nan
        elif self.specials == "fnuz":
            values[sign] = np.nan
        return values


@dataclass(frozen=True, slots=True)
class PowerOfTwo:
    """float8_e8m0fnu: an exponent alone, for the scales of groups; 255 is NaN."""

    bits: int = 8

    def values(self) -> NDArray[np.float64]:
        values = np.ldexp(1.0, np.arange(256) - 127)
        values[255] = np.nan
        return values

    def subnormal(self) -> NDArray[np.bool_]:
        return np.zeros(256, dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number; two's complement where signed."""

    bits: int
    signed: bool = False

    def values(self) -> NDArray[np.float64]:
        codes = np.arange(1 << self.bits)
        return np.where(self.signed & (codes >> (self.bits - 1)), codes - (1 << self.bits), codes).astype(np.float64)

    def subnormal(self) -> NDArray[np.bool_]:
        return np.zeros(1 << self.bits, dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class Truth:
    """bool: a byte, where everything but 0 is true."""

    bits: int = 8

    def values(self) -> NDArray[np.float64]:
        return (np.arange(256) != 0).astype(np.float64)

    def subnormal(self) -> NDArray[np.bool_]:
        return np.zeros(256, dtype=np.bool_)


Pattern = Minifloat | PowerOfTwo | Whole | Truth


@cache
def values_of(pattern: Pattern) -> NDArray[np.float64]:
    """The table of `pattern`, made once; read only."""
    values = pattern.values()
    values.flags.writeable = False
    return values


@cache
def subnormal_of(pattern: Pattern) -> NDArray[np.bool_]:
    subnormal = pattern.subnormal()
    subnormal.flags.writeable = False
    return subnormal


INTEGER_MANTISSA_BITS = 8
# Above every code of a magnitude: 48·256 + 65,535 for 64 bits without a sign.
INTEGER_SIGN = 1 << 17


def magnitude_bounds(codes: NDArray[np.uint32], shift: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The smallest and the largest magnitude u that each code stands for."""
    plain = (codes & (INTEGER_SIGN - 1)).astype(np.int64)
    k = np.clip((plain >> INTEGER_MANTISSA_BITS) - 1, 0, shift)
    leading = (plain - (k << INTEGER_MANTISSA_BITS)).astype(np.uint64)
    width = k.astype(np.uint64)
    lower = leading << width
    return lower, lower + ((np.uint64(1) << width) - np.uint64(1))


def integer_bounds(codes: NDArray[np.uint32], shift: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    smallest, largest = (u.astype(np.float64) for u in magnitude_bounds(codes, shift))
    negative = (codes & INTEGER_SIGN) != 0
    return np.where(negative, -1.0 - largest, smallest), np.where(negative, -1.0 - smallest, largest)


def stored_upper(codes: NDArray[np.uint32], shift: int) -> NDArray[np.uint32]:
    """The upper 16 bits of the stored numbers."""
    upper = (magnitude_bounds(codes, shift)[0] >> np.uint64(shift)).astype(np.uint32)
    return np.where(codes & INTEGER_SIGN, ~upper, upper) & np.uint32(0xFFFF)


Bounds = tuple[NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Symbol:
    """`bits`: of the symbol that the entropy is over; `item_bits`: of a value (a part, if complex) in the file;
    `code_bits`: codes are below 2**code_bits; `resolution`: relative width of a code's range of values, 0 if exact."""

    name: str
    bits: int
    item_bits: int
    code_bits: int
    resolution: float = 0.0
    pattern: Pattern | None = None

    @property
    def shift(self) -> int:
        """Stored bits below the upper 16; 0 for types up to 16 bits."""
        return self.item_bits - self.bits


def _exact(name: str, pattern: Pattern) -> Symbol:
    return Symbol(name, pattern.bits, pattern.bits, pattern.bits, pattern=pattern)


def _integer(name: str, item_bits: int) -> Symbol:
    return Symbol(name, 16, item_bits, 18, 2.0**-INTEGER_MANTISSA_BITS)


FLOAT32 = Symbol("float32", 16, 32, 16, 2.0**-7)
FLOAT64 = Symbol("float64", 16, 64, 20, 2.0**-8)
_OWN = (
    FLOAT32, FLOAT64,
    _exact("float16", Minifloat(5, 10, 15, "ieee")), _exact("bfloat16", Minifloat(8, 7, 127, "ieee")),
    _exact("float8_e4m3fn", Minifloat(4, 3, 7, "fn")), _exact("float8_e5m2", Minifloat(5, 2, 15, "ieee")),
    _exact("float8_e4m3fnuz", Minifloat(4, 3, 8, "fnuz")), _exact("float8_e5m2fnuz", Minifloat(5, 2, 16, "fnuz")),
    _exact("float8_e8m0fnu", PowerOfTwo()), _exact("float4_e2m1fn_x2", Minifloat(2, 1, 1, "none")),
    _exact("bool", Truth()), _exact("int8", Whole(8, signed=True)), _exact("uint8", Whole(8)),
    _exact("int16", Whole(16, signed=True)), _exact("uint16", Whole(16)),
    _exact("quint4x2", Whole(4)), _exact("quint2x4", Whole(2)), _exact("bits1x8", Whole(1)),
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
    **{symbol.name: symbol for symbol in _OWN},
    **{name: next(symbol for symbol in _OWN if symbol.name == same) for name, same in _SAME_AS.items()},
}


def symbol_of(dtype: str) -> Symbol:
    try:
        return SYMBOLS[dtype]
    except KeyError:
        raise FormatError(f"values of type {dtype} cannot be read: their layout is not known") from None


def is_exact(symbol: str | Symbol) -> bool:
    """Does a code stand for one value only?"""
    return (SYMBOLS[symbol] if isinstance(symbol, str) else symbol).pattern is not None


def value_bounds(tally: Tally) -> Bounds:
    """The least and the greatest value that each code of the tally can stand for, in the order of its codes.

    NaN where a code stands for no finite value. The two are equal for exact symbols; else both belong to the range,
    which is cut to the tally's minimum and maximum. Zeros have no code of their own in float32 and float64: they are
    in the ranges that touch 0, and `tally.zeros` says how many."""
    symbol = SYMBOLS[tally.symbol]
    if symbol.pattern is not None:
        values = values_of(symbol.pattern)[tally.codes]
        values = np.where(np.isfinite(values), values, np.nan)
        return values, values
    lower, upper = code_bounds(symbol, tally.codes)
    return _cut(lower, upper, tally.minimum, tally.maximum)


def code_bounds(symbol: Symbol, codes: NDArray[np.uint32]) -> Bounds:
    """As `value_bounds`, for any codes of a symbol that is not exact."""
    if symbol.name not in ("float32", "float64"):
        return integer_bounds(codes, symbol.shift)
    item = np.dtype(f"u{symbol.item_bits // 8}")
    below = symbol.item_bits - symbol.code_bits
    first = codes.astype(item) << item.type(below)
    ends = (first.view(symbol.name), (first | item.type((1 << below) - 1)).view(symbol.name))
    # A code with the largest exponent may hold ±inf or NaN, never a number.
    numbers = np.isfinite(ends[0])
    nearest, farthest = (np.where(numbers, end, np.nan).astype(np.float64) for end in ends)
    negative = (codes >> np.uint32(symbol.code_bits - 1)) != 0
    return np.where(negative, farthest, nearest), np.where(negative, nearest, farthest)


def stored_symbols(symbol: Symbol, codes: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The symbols the entropy is over, from the codes; never finer than those."""
    if symbol.name in ("float32", "float64"):
        return codes >> np.uint32(symbol.code_bits - symbol.bits)
    return codes if symbol.pattern is not None else stored_upper(codes, symbol.shift)


def _cut(lower: NDArray[np.float64], upper: NDArray[np.float64], minimum: float, maximum: float) -> Bounds:
    """`regrid` puts what is beyond float32 into the outermost ranges, which then reach to the extremes."""
    if minimum > maximum:
        return lower, upper
    largest = float(np.finfo(np.float32).max)
    upper = np.where(upper == largest, np.maximum(upper, maximum), upper)
    lower = np.where(lower == -largest, np.minimum(lower, minimum), lower)
    return np.clip(lower, minimum, maximum), np.clip(upper, minimum, maximum)
