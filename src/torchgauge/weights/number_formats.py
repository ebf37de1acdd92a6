"""The number formats that weights are quantized to: q = round(v · limit/absmax) · absmax/limit.

Values are rounded to nearest, ties to even (in nf4, to the lower level), in the arithmetic of their own type, float32
or float64, as quantization libraries do. `kernels.quantization` fuses the same arithmetic; tests compare both bit for
bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.floating]

# Consecutive values of a row that share a scale.
GROUP_SIZE = 128

# The levels of 4-bit NormalFloat: quantiles of a normal distribution, with 0, scaled to [−1, 1].
# Dettmers, Pagnoni, Holtzman, Zettlemoyer: QLoRA: Efficient Finetuning of Quantized LLMs, 2023, appendix E.
NF4_LEVELS = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Format(ABC):
    """The largest magnitude is scaled to `limit`."""

    name: str
    bits: int
    limit: float

    @abstractmethod
    def round(self, scaled: Values) -> Values:
        """The nearest number of the format; `scaled` is within ±limit, up to rounding."""

    def quantize(self, values: Values, absmax: float) -> Values:
        """Quantize and dequantize with this absmax; exact scaling by a power of two keeps extremes in range."""
        power, peak = normalized(absmax, values.dtype)
        if not peak:
            return np.zeros_like(values)
        limit = values.dtype.type(self.limit)
        return self.round(values * power * (limit / peak)) * (peak / limit) / power


@dataclass(frozen=True, slots=True)
class IntegerFormat(Format):
    """Integers from −limit to limit."""

    def round(self, scaled: Values) -> Values:
        return np.rint(scaled)


@dataclass(frozen=True, slots=True)
class Float8Format(Format):
    """Numbers below 2**min_exponent are subnormal, that is evenly spaced."""

    mantissa_bits: int
    min_exponent: int

    def round(self, scaled: Values) -> Values:
        exponents = np.maximum(np.frexp(scaled)[1] - 1, self.min_exponent) - self.mantissa_bits
        return np.ldexp(np.rint(np.ldexp(scaled, -exponents)), exponents)


@dataclass(frozen=True, slots=True)
class LevelsFormat(Format):
    """The nearest of a list of levels, ascending."""

    levels: tuple[float, ...]

    def round(self, scaled: Values) -> Values:
        table = np.array(self.levels, scaled.dtype)
        return table[np.searchsorted(self.middles(scaled.dtype), scaled, side="left")]

    def middles(self, dtype: np.dtype[np.floating] | type[np.floating]) -> Values:
        """The midpoints between levels; a value exactly in the middle takes the lower level."""
        exact = np.array(self.levels)
        return ((exact[1:] + exact[:-1]) / 2).astype(dtype)


INT8 = IntegerFormat("int8", 8, 127.0)
INT4 = IntegerFormat("int4", 4, 7.0)
FP8_E4M3 = Float8Format("fp8_e4m3", 8, 448.0, mantissa_bits=3, min_exponent=-6)
FP8_E5M2 = Float8Format("fp8_e5m2", 8, 57344.0, mantissa_bits=2, min_exponent=-14)
NF4 = LevelsFormat("nf4", 4, 1.0, NF4_LEVELS)
FORMATS: tuple[Format, ...] = (INT8, INT4, FP8_E4M3, FP8_E5M2, NF4)


def normalized(absmax: float, dtype: np.dtype[np.floating]) -> tuple[np.floating, np.floating]:
    """A power of two and absmax times it, which is between ½ and 1 unless that power is not a normal number."""
    scalar = dtype.type
    largest = max_normal_exponent(dtype)
    power = scalar(2.0 ** -int(np.clip(np.frexp(np.float64(absmax))[1], -largest, largest)))
    return power, scalar(absmax) * power


def max_normal_exponent(dtype: np.dtype[np.floating]) -> int:
    """Powers of two up to this exponent, and their inverses, are normal numbers."""
    return -int(np.finfo(dtype).minexp)
