from __future__ import annotations

import numpy as np
import pytest
import torch

from torchgauge.checkpoint import STORAGE_CLASSES
from torchgauge.errors import FormatError
from torchgauge.weights import (
    SYMBOLS,
    code_bounds,
    is_exact,
    stored_symbols,
    subnormal_of,
    symbol_of,
    tally_bytes,
    value_bounds,
    values_of,
)

TORCH_PATTERNS = (
    "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
    "int8", "uint8", "int16", "uint16",
)  # fmt: skip
WIDE = ("float32", "float64", "int32", "int64", "uint32", "uint64")


@pytest.mark.parametrize("dtype", TORCH_PATTERNS)
def test_every_code_stands_for_the_value_that_torch_reads(dtype: str) -> None:
    symbol = SYMBOLS[dtype]
    assert symbol.pattern is not None
    codes = np.arange(1 << symbol.bits).astype(np.uint8 if symbol.bits == 8 else np.uint16)
    expected = torch.from_numpy(codes).view(getattr(torch, dtype)).to(torch.float64).numpy()
    found = values_of(symbol.pattern)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found[found == 0]), np.signbit(expected[expected == 0]))


def test_fp4_has_its_eight_magnitudes() -> None:
    pattern = SYMBOLS["float4_e2m1fn_x2"].pattern
    assert pattern is not None
    assert values_of(pattern)[:8].tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert values_of(pattern)[8:].tolist() == [-0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
    assert np.flatnonzero(subnormal_of(pattern)).tolist() == [1, 9]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e5m2", "float8_e4m3fn"])
def test_subnormal_codes_are_those_below_the_smallest_normal_number(dtype: str) -> None:
    pattern = SYMBOLS[dtype].pattern
    assert pattern is not None
    magnitudes = np.abs(values_of(pattern))
    expected = (magnitudes > 0) & (magnitudes < torch.finfo(getattr(torch, dtype)).smallest_normal)
    np.testing.assert_array_equal(subnormal_of(pattern), expected)


def test_bool_is_true_for_any_byte_but_zero() -> None:
    pattern = SYMBOLS["bool"].pattern
    assert pattern is not None
    assert values_of(pattern).tolist() == [0.0] + [1.0] * 255


def test_every_type_of_a_storage_has_a_symbol() -> None:
    assert {symbol_of(dtype).name for dtype in STORAGE_CLASSES.values()} <= SYMBOLS.keys()


def test_a_type_that_is_not_known_is_named() -> None:
    with pytest.raises(FormatError, match="float6_e2m3fn"):
        symbol_of("float6_e2m3fn")


def test_only_types_up_to_sixteen_bits_are_exact() -> None:
    assert {symbol.name for symbol in SYMBOLS.values() if not is_exact(symbol)} == set(WIDE)
    assert is_exact("bfloat16")


def samples(dtype: str) -> np.ndarray[tuple[int], np.dtype[np.generic]]:
    """Random patterns, all powers of two and their neighbours."""
    kind = np.dtype(dtype)
    raw = np.random.default_rng(1).integers(0, 256, 100 * kind.itemsize, dtype=np.uint8).view(kind)
    if kind.kind == "f":
        numbers = np.ldexp(1.0, np.arange(-1074, 1024, 37)).astype(kind)
        return np.concatenate((raw, numbers, -numbers))
    info = np.iinfo(kind)
    powers = [
        sign * 2**k + step
        for k in (0, 1, 8, 9, 10, 15, 16, 24, 25, 31, 32, 47, 48, 53, 57, 62, 63)
        for sign in (1, -1)
        for step in (-1, 0, 1)
    ]
    return np.concatenate((raw, np.array([p for p in powers if info.min <= p <= info.max], dtype=kind)))


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_each_value_lies_between_the_bounds_of_its_code(dtype: str) -> None:
    for value in samples(dtype):
        tally = tally_bytes(np.array([value]).view(np.uint8), dtype)
        (lower,), (upper,) = code_bounds(SYMBOLS[dtype], tally.codes)
        if np.isfinite(value):
            assert lower <= float(value) <= upper
            assert value_bounds(tally)[0].tolist() == value_bounds(tally)[1].tolist() == [float(value)]
        else:
            assert np.isnan(lower)
            assert np.isnan(upper)


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_a_code_knows_the_upper_sixteen_bits_that_are_stored(dtype: str) -> None:
    for value in samples(dtype):
        stored = np.array([value])
        tally = tally_bytes(stored.view(np.uint8), dtype)
        width = stored.itemsize * 8
        expected = int(stored.view(f"u{stored.itemsize}")[0]) >> (width - 16)
        assert stored_symbols(SYMBOLS[dtype], tally.codes).tolist() == [expected]


@pytest.mark.parametrize("dtype", WIDE)
def test_ranges_are_no_wider_than_the_resolution(dtype: str) -> None:
    symbol = SYMBOLS[dtype]
    values = np.random.default_rng(2).standard_normal(5000) * 2.0**20
    kept = np.abs(values).astype(dtype) if dtype.startswith("u") else values.astype(dtype)
    lower, upper = code_bounds(symbol, tally_bytes(kept.view(np.uint8), dtype).codes)
    assert ((upper - lower) <= symbol.resolution * np.minimum(np.abs(lower), np.abs(upper))).all()


def test_small_whole_numbers_have_codes_of_their_own() -> None:
    tally = tally_bytes(np.arange(-512, 512, dtype=np.int64).view(np.uint8), "int64")
    lower, upper = code_bounds(SYMBOLS["int64"], tally.codes)
    assert sorted(lower) == sorted(upper) == list(range(-512, 512))
