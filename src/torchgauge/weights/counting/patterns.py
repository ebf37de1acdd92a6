"""What each bit pattern of the types up to 16 bits stands for.

A pattern has its `bits`, the `values()` of all its codes (NaN and ±inf where one stands for those), and says which of
them are `subnormal()`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray


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
