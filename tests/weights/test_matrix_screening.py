from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from torchgauge.weights.matrix import EXAMPLES, Screen

RNG = np.random.default_rng(11)


def screened(array: NDArray[Any], height: int | None = None) -> Screen:
    screen = Screen(*array.shape)
    for top in range(0, len(array), height or len(array)):
        screen.add(np.ascontiguousarray(array[top : top + (height or len(array))]))
    return screen


def planted(dtype: type[np.floating[Any]]) -> NDArray[Any]:
    array = RNG.standard_normal((40, 30)).astype(dtype)
    array[5] = array[31] = 0
    array[7] = 0.25
    array[[12, 20, 39]] = array[3]
    array[:, 9] = 0
    array[:, 28] = array[:, 2]
    # −0 is 0, for a dead row as for repeated ones.
    array[31, ::2] = -0.0
    array[12, 9] = -0.0
    return array


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("height", [1, 7, 40])
def test_planted_rows_and_columns_are_found(dtype: type[np.floating[Any]], height: int) -> None:
    screen = screened(planted(dtype), height)
    assert screen.counts() == {
        "dead_rows": 2,
        "constant_rows": 0,  # column 9 is dead and crosses it
        "duplicate_rows": 3,
        "dead_columns": 1,
        "constant_columns": 0,
        "duplicate_columns": 1,
    }
    assert screen.examples() == {
        "dead_rows": [5, 31],
        "duplicate_rows": [[12, 3], [20, 3], [39, 3]],
        "dead_columns": [9],
        "duplicate_columns": [[28, 2]],
    }


def test_constant_rows_and_columns_are_found_apart_from_dead_ones() -> None:
    array = RNG.standard_normal((6, 5)).astype(np.float32)
    array[2], array[4] = 1.5, 0
    screen = screened(array)
    assert screen.examples() == {"dead_rows": [4], "constant_rows": [2]}
    columns = screened(np.ascontiguousarray(array.T), 2)
    assert columns.examples() == {"dead_columns": [4], "constant_columns": [2]}


def test_at_most_ten_examples_are_kept() -> None:
    array = np.tile(RNG.standard_normal(8), (50, 1))
    screen = screened(array)
    assert screen.counts()["duplicate_rows"] == 49
    assert screen.examples()["duplicate_rows"] == [[index, 0] for index in range(1, EXAMPLES + 1)]


def test_rows_that_differ_in_one_bit_or_only_in_order_are_no_repeats() -> None:
    row = RNG.standard_normal(16).astype(np.float32)
    bits = np.tile(row.view(np.uint32), (33, 1))
    for bit in range(32):
        bits[bit + 1, bit % 16] ^= np.uint32(1 << bit)
    array = np.where(np.isfinite(bits.view(np.float32)), bits.view(np.float32), 0)
    assert screened(array).counts()["duplicate_rows"] == 0
    assert screened(np.stack([row, np.roll(row, 1)])).counts()["duplicate_rows"] == 0


def test_few_distinct_values_do_not_collide() -> None:
    # Every sign pattern of twelve weights: 4,096 rows over two values whose low bits are all zero.
    patterns = (np.arange(4096)[:, None] >> np.arange(12)) & 1
    array = np.where(patterns, 1.0, -1.0).astype(np.float32)
    counts = screened(array, 1000).counts()
    assert counts["duplicate_rows"] == 0
    assert counts["constant_rows"] == 2


@pytest.mark.parametrize("magnitude", [1e-310, 1e-30, 1.0, 1e300])
def test_the_norm_neither_overflows_nor_vanishes(magnitude: float) -> None:
    array = np.full((4, 9), magnitude)
    array[1] = 0
    exponent = int(np.frexp(magnitude)[1]) - 1
    screen = screened(array, 3)
    assert screen.largest == magnitude
    assert screen.squared_norm(exponent) == pytest.approx(27 * float(np.ldexp(magnitude, -exponent)) ** 2)
