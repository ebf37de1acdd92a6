from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from torchgauge.weights import narrower_dtype, tally_bytes


def values(*, low_bits: int = 0) -> NDArray[np.float32]:
    bits = np.random.default_rng(0).normal(size=50_000).astype(np.float32).view(np.uint32)
    return ((bits & np.uint32(0xFFFF0000)) | np.uint32(low_bits)).view(np.float32)


def fits(array: NDArray[np.float32], dtype: str = "float32") -> str | None:
    return narrower_dtype(tally_bytes(np.frombuffer(array.tobytes(), np.uint8), dtype), dtype)


@pytest.mark.parametrize("scale", [1.0, 2.0**-100, 2.0**100])
def test_values_whose_lower_half_is_empty_fit_bfloat16(scale: float) -> None:
    assert fits(values() * np.float32(scale)) == "bfloat16"


def test_the_last_bit_of_every_value_is_noticed() -> None:
    assert fits(values(low_bits=1)) is None


def test_a_single_value_that_does_not_fit_is_noticed() -> None:
    array = values()
    array[7] = 1.0001
    assert fits(array) is None


def test_what_is_no_number_is_not_judged() -> None:
    array = values()
    array[7] = np.nan
    assert fits(array) is None


def test_constants_and_masks_are_not_worth_a_word() -> None:
    assert fits(np.ones(1000, dtype=np.float32)) is None
    assert fits(np.tile(np.array([0, 1], dtype=np.float32), 500)) is None


def test_parts_of_complex_numbers_are_not_a_type_of_their_own() -> None:
    assert fits(values(), "complex64") is None
