from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchgauge.errors import UsageError
from torchgauge.units import (
    format_bytes,
    format_count,
    format_exact,
    format_factor,
    format_grams,
    format_joules,
    format_percent,
    format_seconds,
    format_shape,
    format_things,
    format_watts,
    format_whole_percent,
    parse_bytes,
    parse_count,
    parse_joules,
    parse_seconds,
    parse_sizes,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.00 k"),
        (12_345, "12.3 k"),
        (999_499, "999 k"),
        (999_500, "1.00 M"),
        (4_089_184_256, "4.09 G"),
        (175e9, "175 G"),
        (-2_500_000, "-2.50 M"),
        (10**21, "1000 E"),
        (0.5, "0.50"),
        (None, "-"),
    ],
)
def test_a_count_has_three_digits_and_a_decimal_prefix(value: float | None, text: str) -> None:
    assert format_count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (97.5 * 2**20, "97.5 MiB"),
        (2**40, "1.00 TiB"),
        (None, "-"),
    ],
)
def test_bytes_have_a_binary_unit(value: float | None, text: str) -> None:
    assert format_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 s"), (1.5, "1.50 s"), (0.00321, "3.21 ms"), (2e-6, "2.00 µs"), (5e-9, "5.00 ns"), (None, "-")],
)
def test_seconds_take_the_unit_that_fits(value: float | None, text: str) -> None:
    assert format_seconds(value) == text


def test_exact_figures_percentages_and_shapes() -> None:
    assert format_exact(25_557_032) == "25,557,032"
    assert format_exact(None) == "-"
    assert (format_things(1, "tensor"), format_things(1900, "tensor")) == ("1 tensor", "1,900 tensors")
    assert format_percent(0.1234) == "12.3 %"
    assert format_percent(None) == "-"
    assert format_shape((1, 3, 224, 224)) == "1×3×224×224"
    assert format_shape(()) == "scalar"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("30M", 30e6),
        ("4.1 G", 4.1e9),
        ("7B", 7e9),
        ("200MB", 200e6),
        ("1.5GiB", 1.5 * 2**30),
        ("12_000", 12e3),
        ("25,557,032", 25_557_032),
        ("1e9", 1e9),
    ],
)
def test_a_limit_is_parsed(text: str, value: float) -> None:
    assert parse_count(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "many", "3X", "-3", "1.2.3", "M"])
def test_a_malformed_limit_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="is not a number"):
        parse_count(text)


@pytest.mark.parametrize(
    ("text", "value"), [("200MB", 200e6), ("200MiB", 200 * 2**20), ("512B", 512), ("4096", 4096), ("2k", 2000)]
)
def test_a_size_is_decimal_unless_its_unit_has_an_i(text: str, value: float) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("10ms", 0.01), ("1.5 s", 1.5), ("200us", 2e-4), ("200 µs", 2e-4), ("2min", 120), ("0.25", 0.25)],
)
def test_a_time_is_parsed(text: str, value: float) -> None:
    assert parse_seconds(text) == pytest.approx(value)


@pytest.mark.parametrize(("text", "value"), [("5mJ", 5e-3), ("5MJ", 5e6), ("1.2 J", 1.2), ("3kJ", 3e3), ("2Wh", 7200)])
def test_an_energy_is_parsed_as_it_is_written(text: str, value: float) -> None:
    assert parse_joules(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["5 h", "10MB", "fast", "-1ms"])
def test_a_malformed_time_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="is not a time"):
        parse_seconds(text)


@given(st.integers(min_value=0, max_value=10**20))
def test_a_formatted_count_reads_back_within_its_three_digits(value: int) -> None:
    text = format_count(value)
    if not text.endswith("E"):  # parse_count ends at peta
        assert parse_count(text) == pytest.approx(value, rel=5.1e-3)


@given(st.integers(min_value=0, max_value=2**49))
def test_formatted_bytes_read_back_within_their_three_digits(value: int) -> None:
    text = format_bytes(value).removesuffix(" B")
    assert parse_count(text) == pytest.approx(value, rel=5.1e-3)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"), (0, "0 J"), (1.0, "1.00 J"), (0.9999, "1.00 J"), (1234.5, "1.23 kJ"), (0.00123, "1.23 mJ"),
        (4.5e-6, "4.50 µJ"), (1e-10, "100 pJ"), (2e-15, "2e-15 J"), (-0.5, "-500 mJ"),
    ],
)  # fmt: skip
def test_joules_have_prefixes_both_ways(value: float | None, text: str) -> None:
    assert format_joules(value) == text


def test_watts_and_grams_are_written_alike() -> None:
    assert format_watts(562.4) == "562 W"
    assert format_grams(0.0123) == "12.3 mg"
    assert format_grams(4560) == "4.56 kg"


@pytest.mark.parametrize(("share", "text"), [(0.123, "12.3 %"), (-0.0004, "0.0 %"), (-0.02, "-2.0 %"), (None, "-")])
def test_a_percentage_has_a_space_and_no_negative_zero(share: float | None, text: str) -> None:
    assert format_percent(share) == text


def test_whole_percents_and_signed_factors() -> None:
    assert [format_whole_percent(share) for share in (0.3, 0.826, -0.001, 1.0, None)] == [
        "30 %", "83 %", "0 %", "100 %", "-",
    ]  # fmt: skip
    assert [format_factor(value) for value in (8, 1.25, None)] == ["8.0×", "1.2×", "-"]


@pytest.mark.parametrize(
    ("asked", "sizes"), [(None, [None]), (8, [8]), ([1, 8], [1, 8]), ("8", [8]), ("1, 8,32", [1, 8, 32])]
)
def test_one_size_or_several(asked: Any, sizes: list[int | None]) -> None:
    assert parse_sizes(asked, "batch") == sizes


@pytest.mark.parametrize("asked", [0, "0", "", "1,,2", "one", [1, -1], [], ["x"], 1.5])
def test_invalid_sizes_are_refused(asked: Any) -> None:
    with pytest.raises(UsageError, match="batch must be a positive number"):
        parse_sizes(asked, "batch")
