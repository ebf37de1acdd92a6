"""Passes over the values of a tensor: with numpy for a small one, with compiled kernels for the others.

Loading numba and the kernels takes longer than the whole scan of a small file. The choice depends on the size of the
tensor alone, so figures do not depend on the other tensors of the file. Counts and rounded values are the same both
ways; sums may differ in their last bits.
"""

from __future__ import annotations

from math import frexp

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.number_formats import FORMATS, GROUP_SIZE, max_normal_exponent
from torchgauge.weights.symbols import FLOAT32, FLOAT64, INTEGER_MANTISSA_BITS, INTEGER_SIGN, Symbol, symbol_of
from torchgauge.weights.tally import Moments, Tally, moments_of_counts, tally_of_counts

# With this many values, numpy takes a few milliseconds for all passes together.
SMALL_ELEMENTS = 1 << 16

Bytes = NDArray[np.uint8]
Values = NDArray[np.floating]
Floats = NDArray[np.float64]

# An odd multiplier and a fold spread the stored bits over all 64 bits, so that types whose low bits are always zero
# (bfloat16 read as float32) hash as well as others. Zero stays zero.
SPREAD = np.uint64(0x9E3779B97F4A7C15)
FOLD = np.uint64(32)


def tally_bytes(buffer: Bytes, dtype: str, *, big_endian: bool = False, elements: int | None = None) -> Tally:
    """Tally a run of whole values of a torch `dtype`, at any address. `elements` is needed for sub-byte types whose
    last byte is not full."""
    symbol = symbol_of(dtype)
    count = len(buffer) * 8 // symbol.item_bits
    if count > SMALL_ELEMENTS:
        from torchgauge.weights import kernels

        return kernels.tally_bytes(buffer, dtype, big_endian=big_endian, elements=elements)
    if symbol.bits < 8:
        # Several codes to a byte, the lowest bits first.
        places = np.arange(0, 8, symbol.bits, dtype=np.uint8)
        packed = ((buffer[:, None] >> places) & np.uint8((1 << symbol.bits) - 1)).ravel()
        codes, counts = np.unique(packed[: count if elements is None else elements], return_counts=True)
        return tally_of_counts(symbol, codes.astype(np.uint32), counts.astype(np.int64))
    values = np.frombuffer(buffer.tobytes(), f"{'>' if big_endian else '<'}u{symbol.item_bits // 8}")
    values = values.astype(values.dtype.newbyteorder("="))
    if symbol.pattern is None:
        return _tally_numbers(values, symbol)
    codes, counts = np.unique(values, return_counts=True)
    return tally_of_counts(symbol, codes.astype(np.uint32), counts.astype(np.int64))


def _tally_numbers(patterns: NDArray[np.unsignedinteger], symbol: Symbol) -> Tally:
    """The tally of a type whose codes are only the leading bits."""
    is_float = symbol.name in (FLOAT32.name, FLOAT64.name)
    stored = patterns.view(symbol.name)
    with np.errstate(invalid="ignore"):  # a NaN may be one that signals
        numbers = stored.astype(np.float64)
    upper = patterns >> patterns.dtype.type(symbol.item_bits - symbol.code_bits)
    every = upper if is_float else _grid(stored, symbol)
    codes, counts = np.unique(every.astype(np.uint32), return_counts=True)
    finite = numbers[np.isfinite(numbers)]
    nan, zeros = int(np.isnan(numbers).sum()), int((finite == 0).sum())
    # + 0.0 turns −0 into 0.
    minimum, maximum = float(finite.min(initial=np.inf)) + 0.0, float(finite.max(initial=-np.inf)) + 0.0
    largest = max(abs(minimum), abs(maximum)) if finite.size else 0.0
    # Without a unit, fourth powers would overflow or vanish.
    exponent = frexp(largest)[1] if largest and not 2.0**-200 <= largest <= 2.0**200 else 0
    if minimum == maximum:  # equal values have no spread, however their sum is rounded
        mean = float(np.ldexp(minimum, -exponent))
        moments = Moments(finite.size, mean, 0.0, 0.0, 0.0, finite.size * abs(mean))
    else:
        moments = moments_of_counts(np.ldexp(finite, -exponent), np.ones(finite.size, np.int64))
    return Tally(
        symbol=symbol.name,
        count=numbers.size,
        nan=nan,
        inf=numbers.size - nan - finite.size,
        zeros=zeros,
        subnormal=int((np.abs(finite) < np.finfo(stored.dtype).tiny).sum()) - zeros if is_float else 0,
        minimum=minimum,
        maximum=maximum,
        mean=moments.mean, m2=moments.m2, m3=moments.m3, m4=moments.m4, l1=moments.l1, exponent=exponent,
        codes=codes,
        counts=counts.astype(np.int64),
    )  # fmt: skip


def _grid(numbers: NDArray[np.integer], symbol: Symbol) -> NDArray[np.uint64]:
    """The codes of the integer grid of `symbols`."""
    sign = (numbers.astype(np.int64) >> 63) if symbol.name.startswith("int") else np.zeros(numbers.size, np.int64)
    magnitude = (numbers.astype(np.uint64)) ^ sign.astype(np.uint64)
    leading = np.minimum(magnitude >> np.uint64(INTEGER_MANTISSA_BITS + 1), np.uint64(1 << symbol.shift))
    k = np.minimum(np.frexp(leading.astype(np.float64))[1], symbol.shift).astype(np.uint64)  # its bit length
    codes = (k << np.uint64(INTEGER_MANTISSA_BITS)) + (magnitude >> k)
    return codes | (sign.astype(np.uint64) & np.uint64(INTEGER_SIGN))


class QuantizationErrors:
    """Sums over the blocks of a matrix, which are C-contiguous, of one type and finite. `rows` and `groups` are Σ(v −
    q)² and max |v − q| per format, in the order of `FORMATS`; `signal` is Σv²."""

    def __init__(self, columns: int) -> None:
        # If a row is a single group, both scales are the same.
        self._errors = np.zeros((1 if columns <= GROUP_SIZE else 2, 2, len(FORMATS)))
        self.rows, self.groups = self._errors[0], self._errors[-1]
        self.signal = 0.0

    def add(self, block: Values) -> None:
        if not block.size:
            return
        width = min(GROUP_SIZE, block.shape[1])
        padded = np.pad(block, ((0, 0), (0, -block.shape[1] % width))).reshape(-1, width)
        by_row = np.repeat(np.abs(block).max(axis=1), len(padded) // len(block))
        self.signal += float((padded.astype(np.float64) ** 2).sum())
        for grain, peaks in zip(self._errors, (by_row, np.abs(padded).max(axis=1)), strict=False):
            is_zero = peaks == 0
            reach, scalar = max_normal_exponent(block.dtype), block.dtype.type
            exponents = np.clip(np.frexp(peaks.astype(np.float64))[1], -reach, reach)
            powers, units = np.ldexp(1.0, -exponents).astype(block.dtype), np.ldexp(1.0, exponents)
            values, scaled_peaks = padded * powers[:, None], np.where(is_zero, scalar(1), peaks * powers)[:, None]
            for number, format in enumerate(FORMATS):
                limit = scalar(format.limit)
                rounded = format.round(values * (limit / scaled_peaks)) * (scaled_peaks / limit)
                errors = (values - rounded).astype(np.float64) * units[:, None]
                grain[0, number] += float((errors * errors).sum())
                grain[1, number] = max(grain[1, number], float(np.abs(errors).max()))


def quantization_errors(rows: int, columns: int) -> QuantizationErrors:
    if rows * columns > SMALL_ELEMENTS:
        from torchgauge.weights.kernels import quantization as kernels

        return kernels.CompiledErrors(columns)
    return QuantizationErrors(columns)


def no_errors() -> Floats:
    return np.zeros((2, len(FORMATS)))


def weighted_errors(values: Floats, weights: Floats, peak: float, elements: int) -> Floats:
    """Σ(v − q)² and max |v − q| per format with one scale for all values, each with a weight; `peak`, the largest
    magnitude, is between ½ and 1. `elements` is the size of the tensor."""
    if elements > SMALL_ELEMENTS:
        from torchgauge.weights.kernels import quantization as kernels

        return kernels.weighted_errors(values, weights, peak)
    errors = no_errors()
    for number, format in enumerate(FORMATS):
        lost = np.abs(values - format.round(values * (format.limit / peak)) * (peak / format.limit))
        errors[:, number] = (lost * lost * weights).sum(), lost.max(initial=0.0)
    return errors


def add_energies(block: Values, rows: Floats, columns: Floats, elements: int) -> float:
    """Set `rows`, add to `columns`, and return the energy of the 2 largest of every 4 values along a row; also 2 of a
    shorter remainder. `elements` are those of the whole matrix."""
    if elements > SMALL_ELEMENTS:
        from torchgauge.weights.kernels import rows as kernels

        return kernels.add_energies(block, rows, columns)
    energies = block.astype(np.float64) ** 2
    rows[:] = energies.sum(axis=1)
    columns += energies.sum(axis=0)
    quads = np.pad(energies, ((0, 0), (0, -block.shape[1] % 4))).reshape(len(block), -1, 4)
    return float(np.sort(quads)[..., 2:].sum())


def screen(
    block: Values,
    row_keys: NDArray[np.uint64],
    column_keys: NDArray[np.uint64],
    row_hash: NDArray[np.uint64],
    column_hash: NDArray[np.uint64],
    inverse_units: Floats,
    squares: Floats,
    elements: int,
) -> None:
    """Hashes of rows and columns, those of columns carried over from block to block, and `squares`, sums of squares,
    each in the unit of its row. `elements` are those of the whole matrix."""
    bits = block.view(np.uint32 if block.itemsize == 4 else np.uint64)
    if elements > SMALL_ELEMENTS:
        from torchgauge.weights.kernels import rows as kernels

        kernels.screen(block, bits, row_keys, column_keys, row_hash, column_hash, inverse_units, squares)
        return
    # −0 equals 0, so both must have the same hash.
    words = np.where(block != 0, bits, 0).astype(np.uint64) * SPREAD
    words ^= words >> FOLD
    for key in range(2):
        row_hash[:, key] = (words * column_keys[key]).sum(axis=1)
        column_hash[key] += (words * row_keys[:, key : key + 1]).sum(axis=0)
    squares[:] = ((block.astype(np.float64) * inverse_units[:, None]) ** 2).sum(axis=1)
