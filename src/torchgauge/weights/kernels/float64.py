"""float64, and 32-bit and 64-bit integers as float64. These types are rare, so the loops are simple."""

from __future__ import annotations

from math import frexp

import numpy as np
from numba import int64, uint32, uint64

from torchgauge.weights.kernels.counting import I64, U32, count_codes
from torchgauge.weights.kernels.jit import compiled, entry
from torchgauge.weights.kernels.moments import EXPONENT, F64, L1, ZEROS, add_block, in_larger_unit, keep_finite
from torchgauge.weights.kernels.vectors import double_from
from torchgauge.weights.symbols import INTEGER_MANTISSA_BITS, INTEGER_SIGN

BLOCK = 2048
CODE_BITS = 20
GROUP_BITS = 10
INFINITY = 0x7FF << 52
# Within these bounds, fourth powers neither overflow nor vanish; other blocks are scaled by a power of two.
MAX_UNSCALED, MIN_UNSCALED = 2.0**200, 2.0**-200


@entry
def tally_doubles(
    values: F64, patterns: I64, table: U32, touched: U32, state: F64, special: I64, scratch: F64, codes: U32
) -> None:
    """`values` and `patterns` are the same memory; `codes` and `scratch` have room for a block."""
    for start in range(0, values.size, BLOCK):
        stop = min(start + BLOCK, values.size)
        for index in range(start, stop):
            codes[index - start] = uint32(uint64(patterns[index]) >> uint64(64 - CODE_BITS))
        count_codes(codes[: stop - start], table, touched, GROUP_BITS)
        _add(values[start:stop], patterns[start:stop], state, special, scratch)


@entry
def tally_integers(
    numbers: I64, signed: bool, shift: int, table: U32, touched: U32, state: F64, special: I64, scratch: F64, codes: U32
) -> None:
    """Count by the integer grid of `symbols`; unsigned numbers are passed as their bit patterns."""
    for start in range(0, numbers.size, BLOCK):
        block = numbers[start : min(start + BLOCK, numbers.size)]
        values = scratch[: block.size]
        _grid_codes(block, signed, shift, values, codes)
        count_codes(codes[: block.size], table, touched, GROUP_BITS)
        for index in range(block.size):
            values[index] = np.float64(block[index]) if signed else np.float64(uint64(block[index]))
        _add(values, values.view(np.int64), state, special, scratch)


@compiled
def _grid_codes(block: I64, signed: bool, shift: int, scratch: F64, codes: U32) -> None:
    """The bit length of u >> 9 is the exponent of 2·(u >> 9) + 1 as float64; exact, because it is capped at `shift`."""
    patterns = scratch.view(np.int64)
    cap = int64(1) << int64(shift)
    flip = int64(-1) if signed else int64(0)
    for index in range(block.size):
        magnitude = uint64(block[index] ^ ((block[index] >> 63) & flip))
        leading = int64(magnitude >> uint64(INTEGER_MANTISSA_BITS + 1))
        scratch[index] = np.float64(2 * (leading if leading < cap else cap) + 1)
    for index in range(block.size):
        sign = (block[index] >> 63) & flip
        magnitude = uint64(block[index] ^ sign)
        k = (patterns[index] >> 52) - 1023
        k = k if k < shift else shift
        code = (uint64(k) << uint64(INTEGER_MANTISSA_BITS)) + (magnitude >> uint64(k))
        codes[index] = uint32(code | (uint64(sign) & uint64(INTEGER_SIGN)))


@compiled
def _add(values: F64, patterns: I64, state: F64, special: I64, scratch: F64) -> None:
    low, high = _ends(patterns)
    if (low & INFINITY) == INFINITY or (high & INFINITY) == INFINITY:
        values = keep_finite(values, special, scratch)
        low, high = _ends(values.view(np.int64))
        if not values.size:
            return
    zeros = 0
    for index in range(values.size):
        zeros += values[index] == 0.0
    special[ZEROS] += zeros
    minimum, maximum = double_from(low) + 0.0, double_from(high) + 0.0
    unit = _unit(max(abs(minimum), abs(maximum)), state)
    add_block(state, values if unit == 0.0 else _scaled(values, -int(unit), scratch), minimum, maximum)


@compiled
def _unit(largest: float, state: F64) -> float:
    """The exponent of the common unit of these values and the state, which is rescaled to it."""
    exponent = 0.0
    if largest == 0.0:
        return state[EXPONENT]
    if largest > MAX_UNSCALED or largest < MIN_UNSCALED:
        exponent = float(frexp(largest)[1])
    if state[L1] == 0.0:
        state[EXPONENT] = exponent
    elif exponent > state[EXPONENT]:
        in_larger_unit(state, exponent)
    return state[EXPONENT]


@compiled
def _scaled(values: F64, power: int, scratch: F64) -> F64:
    """In two steps, because 2**1074 is not a float64. Values far below the unit become 0."""
    half = power // 2
    first, second = 2.0**half, 2.0 ** (power - half)
    for index in range(values.size):
        scratch[index] = values[index] * first * second
    return scratch[: values.size]


@compiled
def _ends(patterns: I64) -> tuple[int, int]:
    """As in `float32`: the bit patterns of the smallest and largest value, or of ±inf or NaN if there are any."""
    low, high, unsigned = int64(0x7FFFFFFFFFFFFFFF), int64(-0x7FFFFFFFFFFFFFFF - 1), uint64(0)
    for index in range(patterns.size):
        pattern = patterns[index]
        low = pattern if pattern < low else low
        high = pattern if pattern > high else high
        unsigned = uint64(pattern) if uint64(pattern) > unsigned else unsigned
    return low if low >= 0 else int64(unsigned), high if high >= 0 else low
