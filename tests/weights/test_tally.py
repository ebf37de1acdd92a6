"""Tallies of parts against the tally of the whole, and the ways a tally travels."""

from __future__ import annotations

import json
import math
import pickle
from functools import reduce

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from torchgauge.errors import FormatError
from torchgauge.weights import (
    SYMBOLS,
    Moments,
    Tally,
    combine_moments,
    empty_tally,
    merge_tallies,
    moments_of_counts,
    tally_bytes,
    tally_from_json,
    tally_to_json,
    to_float32_codes,
    value_bounds,
)

RNG = np.random.default_rng(11)
TYPES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "int8", "int32", "int64", "uint64", "quint4x2")
COUNTS = ("count", "nan", "inf", "zeros", "subnormal", "minimum", "maximum")


def content_of(dtype: str) -> NDArray[np.uint8]:
    if dtype in ("quint4x2", "uint64"):
        return RNG.integers(0, 256, 8192, dtype=np.uint8)
    values = torch.from_numpy(RNG.standard_normal(4096) * 20 + 5)
    return values.to(getattr(torch, dtype)).view(torch.uint8).numpy()


def assert_equal(found: Tally, expected: Tally, *, tolerance: float = 1e-12) -> None:
    np.testing.assert_array_equal(found.codes, expected.codes)
    np.testing.assert_array_equal(found.counts, expected.counts)
    assert [getattr(found, name) for name in COUNTS] == [getattr(expected, name) for name in COUNTS]
    assert found.moments._replace(m3=0) == pytest.approx(expected.moments._replace(m3=0), rel=tolerance)
    # A third power is small where both sides nearly cancel.
    assert found.m3 == pytest.approx(expected.m3, abs=tolerance * math.sqrt(expected.m2 * expected.m4))


@pytest.mark.parametrize("dtype", TYPES)
@given(cuts=st.lists(st.integers(0, 1024), max_size=6))
@settings(max_examples=15, deadline=None)
def test_parts_add_up_to_the_whole(dtype: str, cuts: list[int]) -> None:
    content = content_of(dtype)
    parts = np.split(content, [8 * cut for cut in sorted(cuts) if 8 * cut <= len(content)])
    merged = reduce(merge_tallies, (tally_bytes(part, dtype) for part in parts), empty_tally(dtype))
    assert_equal(merged, tally_bytes(content, dtype))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "float8_e5m2"])
def test_where_the_symbol_is_the_value_the_order_of_the_parts_does_not_show(dtype: str) -> None:
    content = content_of(dtype)
    parts = [tally_bytes(part, dtype) for part in np.split(content, [100, 2000, 2002])]
    forwards, backwards = reduce(merge_tallies, parts), reduce(merge_tallies, reversed(parts))
    assert tally_to_json(forwards) == tally_to_json(backwards) == tally_to_json(tally_bytes(content, dtype))


def test_parts_far_apart_keep_their_moments() -> None:
    """Two constants at 0 and 1e6: mean and powers of n·p(1−p)…, in closed form."""
    first = tally_bytes(np.zeros(3000, dtype=np.float32).view(np.uint8), "float32")
    second = tally_bytes(np.full(1000, 1e6, dtype=np.float32).view(np.uint8), "float32")
    found = merge_tallies(first, second).moments
    low, high = -250_000.0, 750_000.0
    powers = [3000 * low**k + 1000 * high**k for k in (2, 3, 4)]
    assert found == pytest.approx((4000, 250_000, *powers, 1e9, 0), rel=1e-14)


def test_parts_in_different_units_add_up() -> None:
    values = np.ldexp(RNG.standard_normal(2048) + 3, np.repeat([-700, 900], 1024))
    parts = [tally_bytes(part.view(np.uint8), "float64") for part in np.split(values, 2)]
    assert parts[0].exponent != parts[1].exponent
    assert_equal(merge_tallies(*parts), tally_bytes(values.view(np.uint8), "float64"))
    assert_equal(merge_tallies(*reversed(parts)), tally_bytes(values.view(np.uint8), "float64"))


def test_zeros_take_the_unit_of_what_they_are_added_to() -> None:
    zeros, tiny = np.zeros(10), np.full(10, 5e-324)
    found = merge_tallies(tally_bytes(zeros.view(np.uint8), "float64"), tally_bytes(tiny.view(np.uint8), "float64"))
    assert math.ldexp(found.l1, found.exponent) == 50e-324
    assert found.m2 > 0


def test_an_empty_tally_changes_nothing() -> None:
    tally = tally_bytes(content_of("float32"), "float32")
    assert merge_tallies(empty_tally("float32"), tally) is merge_tallies(tally, empty_tally("float32")) is tally


def test_different_symbols_do_not_add_up() -> None:
    with pytest.raises(ValueError, match="to_float32_codes"):
        merge_tallies(empty_tally("float32"), empty_tally("bfloat16"))


def test_an_empty_tally_of_a_type_that_is_not_known_is_an_error() -> None:
    with pytest.raises(FormatError):
        empty_tally("float6_e3m2fn")


@pytest.mark.parametrize("dtype", TYPES)
def test_a_tally_survives_json_and_pickle_to_the_last_bit(dtype: str) -> None:
    for tally in (tally_bytes(content_of(dtype), dtype), empty_tally(dtype)):
        for found in (tally_from_json(json.loads(json.dumps(tally_to_json(tally)))), pickle.loads(pickle.dumps(tally))):
            assert_equal(found, tally, tolerance=0)
            assert (found.symbol, found.exponent, found.codes.dtype) == (tally.symbol, tally.exponent, np.uint32)
            assert found.counts.dtype == np.int64


def test_a_tally_is_compact_as_text() -> None:
    values = (RNG.standard_normal(1_000_000) * 0.02).astype(np.float32)
    tally = tally_bytes(values.view(np.uint8), "float32")
    assert len(json.dumps(tally_to_json(tally))) < 4 * len(tally.codes)


@pytest.mark.parametrize("dtype", TYPES)
def test_regridded_values_stay_in_their_ranges(dtype: str) -> None:
    tally = tally_bytes(content_of(dtype), dtype)
    found = to_float32_codes(tally)
    assert (found.symbol, found.count, found.moments) == ("float32", tally.count, tally.moments)
    assert int(found.counts.sum()) == tally.count
    lower, upper = value_bounds(tally)
    middle = (lower / 2 + upper / 2) * tally.counts
    lower, upper = value_bounds(found)
    slack = tally.count if dtype.startswith(("int", "uint")) else 0
    assert np.nansum(lower * found.counts) - slack <= np.nansum(middle) * (1 + 1e-12)
    assert np.nansum(middle) <= np.nansum(upper * found.counts) + slack + 1e-12 * abs(np.nansum(middle))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "int16"])
def test_regridding_is_tallying_the_values_as_float32(dtype: str) -> None:
    values = torch.from_numpy(np.rint(RNG.standard_normal(4096) * 300)).to(getattr(torch, dtype))
    found = to_float32_codes(tally_bytes(values.view(torch.uint8).numpy(), dtype))
    expected = tally_bytes(values.to(torch.float32).view(torch.uint8).numpy(), "float32")
    assert_equal(merge_tallies(found, empty_tally("float32")), expected)


def test_regridding_keeps_what_float32_cannot_hold() -> None:
    values = np.array([1e300, -1e300, 1e-300, -1e-300, np.nan, np.inf, -np.inf, 1.0])
    found = to_float32_codes(tally_bytes(values.view(np.uint8), "float64"))
    assert found.codes.tolist() == [0x0000, 0x3F80, 0x7F7F, 0x7F80, 0x7FC0, 0x8000, 0xFF7F, 0xFF80]
    lower, upper = value_bounds(found)
    assert (np.nanmin(lower), np.nanmax(upper)) == (-1e300, 1e300)
    assert (found.nan, found.inf) == (1, 2)


@given(st.lists(st.tuples(st.integers(-1000, 1000), st.integers(1, 50)), min_size=1, max_size=20), st.integers(0, 20))
@settings(max_examples=60, deadline=None)
def test_moments_combine_as_those_of_all_values(pairs: list[tuple[int, int]], cut: int) -> None:
    def moments(part: list[tuple[int, int]]) -> Moments:
        values, counts = np.array(part, dtype=np.int64).reshape(-1, 2).T
        return moments_of_counts(values.astype(np.float64), counts)

    whole, combined = moments(pairs), combine_moments(moments(pairs[:cut]), moments(pairs[cut:]))
    scale = [1, 1e3, 1e6, 1e9, 1e12, 1e3, 1]
    for found, expected, size in zip(combined, whole, scale, strict=True):
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-13 * size * whole.n)


def test_exact_symbols_give_moments_without_loss() -> None:
    """bfloat16 far from 0: the distances are computed from the unrounded mean."""
    values = torch.tensor([256.0, 258.0] * 999 + [260.0]).to(torch.bfloat16)
    tally = tally_bytes(values.view(torch.uint8).numpy(), "bfloat16")
    mean = (999 * 514 + 260) / 1999
    assert tally.m2 == pytest.approx(sum((v - mean) ** 2 for v in [256.0, 258.0] * 999 + [260.0]), rel=1e-13)
    assert SYMBOLS[tally.symbol].resolution == 0
