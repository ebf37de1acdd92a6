"""Per tensor: closed forms, and the plain arithmetic of `formats` on the values themselves."""

from __future__ import annotations

import json
from math import log10
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from torchgauge.weights import FORMATS, Format, Tally, tally_bytes, tensor_quantization

NAMES = [format.name for format in FORMATS]


def tally_of(values: Any, dtype: str = "float32") -> Tally:
    tensor = torch.as_tensor(np.asarray(values)).to(getattr(torch, dtype))
    raw = tensor.view(torch.uint8).numpy() if tensor.numel() else np.empty(0, np.uint8)
    return tally_bytes(raw, dtype)


def stored_values(values: Any, dtype: str) -> NDArray[np.float64]:
    return np.asarray(torch.as_tensor(values).to(getattr(torch, dtype)).double().numpy())


def figures_of(values: NDArray[Any], format: Format) -> tuple[float, float]:
    errors = values - format.quantize(values, float(np.abs(values).max()))
    return 10 * log10((values**2).sum() / (errors**2).sum()), float(np.abs(errors).max())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "int16"])
def test_types_of_16_bits_and_fewer_have_the_errors_of_their_values(dtype: str) -> None:
    values = torch.randn(30_000, generator=torch.Generator().manual_seed(0)) * (1000 if dtype == "int16" else 1)
    found: Any = tensor_quantization(tally_of(values, dtype))
    assert found["resolution"] == 0
    for format in FORMATS:
        sqnr_db, max_error = figures_of(stored_values(values, dtype), format)
        figure = found[format.name]["per_tensor"]
        assert figure["sqnr_db"] == pytest.approx(sqnr_db, rel=1e-12), format.name
        assert figure["max_error"] == pytest.approx(max_error, rel=1e-12), format.name


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", ["normal", "heavy", "uniform", "shifted"])
def test_wider_types_come_close_though_only_ranges_are_counted(dtype: str, shape: str) -> None:
    random = np.random.default_rng(0)
    values = {
        "normal": random.standard_normal(100_000),
        "heavy": random.standard_t(3, 100_000),
        "uniform": random.uniform(-1, 1, 100_000),
        "shifted": 1 + 0.1 * random.standard_normal(100_000),
    }[shape]
    found: Any = tensor_quantization(tally_of(values, dtype))
    assert found["resolution"] in (2**-7, 2**-8)
    for format in FORMATS:
        sqnr_db, max_error = figures_of(stored_values(values, dtype), format)
        figure = found[format.name]["per_tensor"]
        assert figure["sqnr_db"] == pytest.approx(sqnr_db, abs=0.1), format.name
        assert figure["max_error"] == pytest.approx(max_error, rel=0.05), format.name


def test_uniform_values_have_the_textbook_signal_to_noise() -> None:
    """Signal 1/3 and noise step²/12 with steps of 1/127 and 1/7: 10 log10(4 · limit²), 6.02 dB per bit."""
    found: Any = tensor_quantization(tally_of(np.linspace(-1, 1, 200_001)))
    assert found["int8"]["per_tensor"]["sqnr_db"] == pytest.approx(10 * log10(4 * 127**2), abs=0.05)
    assert found["int4"]["per_tensor"]["sqnr_db"] == pytest.approx(10 * log10(4 * 7**2), abs=0.05)
    assert found["int8"]["per_tensor"]["max_error"] == pytest.approx(1 / 254, rel=0.02)
    assert found["int4"]["per_tensor"]["max_error"] == pytest.approx(1 / 14, rel=0.02)


def test_a_mantissa_bit_is_worth_six_decibels() -> None:
    values = torch.randn(50_000, generator=torch.Generator().manual_seed(1))
    found: Any = tensor_quantization(tally_of(values, "bfloat16"))
    difference = found["fp8_e4m3"]["per_tensor"]["sqnr_db"] - found["fp8_e5m2"]["per_tensor"]["sqnr_db"]
    assert difference == pytest.approx(20 * log10(2), abs=0.3)
    assert found["int8"]["per_tensor"]["sqnr_db"] > found["int4"]["per_tensor"]["sqnr_db"]


def test_what_is_on_the_grid_is_kept_without_loss() -> None:
    found: Any = tensor_quantization(tally_of(np.arange(-127, 128), "int8"))
    assert found["int8"]["per_tensor"] == {"sqnr_db": None, "max_error": 0.0, "bytes": 255 + 4}
    assert found["int4"]["per_tensor"]["sqnr_db"] < 30
    assert found["smallest_30db"] == "int8"


@pytest.mark.parametrize(
    ("values", "dtype"),
    [([0.7, -0.7, 0.7], "bfloat16"), ([0.7] * 5, "float32"), ([0.7], "float32"), ([7e9], "float64")],
)
def test_a_single_magnitude_is_kept_by_every_format(values: list[float], dtype: str) -> None:
    found: Any = tensor_quantization(tally_of(values, dtype))
    for name in NAMES:
        figure = found[name]["per_tensor"]
        assert figure["sqnr_db"] is None or figure["sqnr_db"] > 280
        assert figure["max_error"] <= 1e-15 * values[0]
    assert found["smallest_30db"] in ("int4", "nf4")


def test_zeros_alone_have_no_signal_and_no_error() -> None:
    found: Any = tensor_quantization(tally_of(np.zeros(10)))
    assert all(found[name]["per_tensor"]["sqnr_db"] is None for name in NAMES)
    assert all(found[name]["per_tensor"]["max_error"] == 0 for name in NAMES)
    assert found["smallest_30db"] is found["smallest_20db"] is found["bytes_after"]["smallest_30db"] is None
    assert found["outlier_share"] == 0


@pytest.mark.parametrize("values", [[], [float("nan")], [float("inf"), float("nan")]])
def test_without_a_finite_value_there_is_no_figure(values: list[float]) -> None:
    found: Any = tensor_quantization(tally_of(np.array(values)))
    assert all(found[name]["per_tensor"]["sqnr_db"] is found[name]["per_tensor"]["max_error"] is None for name in NAMES)
    assert found["outlier_share"] is found["smallest_20db"] is None


def test_values_that_are_not_finite_do_not_change_the_figures() -> None:
    values = torch.randn(1_000, generator=torch.Generator().manual_seed(2)).tolist()
    for dtype in ("float32", "bfloat16"):
        plain: Any = tensor_quantization(tally_of(values, dtype))
        spoiled: Any = tensor_quantization(tally_of([*values, float("nan"), float("inf"), -float("inf")], dtype))
        for name in NAMES:
            assert spoiled[name]["per_tensor"]["sqnr_db"] == plain[name]["per_tensor"]["sqnr_db"]


@pytest.mark.parametrize(("dtype", "exponent"), [("float64", 1000), ("float64", -1000), ("float32", -100)])
def test_huge_and_tiny_values_have_the_figures_of_ordinary_ones(dtype: str, exponent: int) -> None:
    values = np.random.default_rng(3).standard_normal(1_000).astype(dtype)
    plain: Any = tensor_quantization(tally_of(values, dtype))
    scaled: Any = tensor_quantization(tally_of(np.ldexp(values, exponent), dtype))
    assert scaled["outlier_share"] == plain["outlier_share"]
    for name in NAMES:
        before, after = plain[name]["per_tensor"], scaled[name]["per_tensor"]
        assert after["sqnr_db"] == pytest.approx(before["sqnr_db"], rel=1e-12)
        assert after["max_error"] == pytest.approx(np.ldexp(before["max_error"], exponent), rel=1e-12)
    json.dumps(scaled, allow_nan=False)


def test_the_largest_doubles_still_give_plain_numbers() -> None:
    found: Any = tensor_quantization(tally_of([1.7e308, -1.7e308, 1e308], "float64"))
    json.dumps(found, allow_nan=False)
    assert found["outlier_share"] == 0
    assert found["int8"]["per_tensor"]["sqnr_db"] > 30


def test_subnormals_beside_zeros_are_not_mistaken_for_zeros() -> None:
    """In float32 both have the first code: the signal is that of the three that are not 0."""
    found: Any = tensor_quantization(tally_of(np.array([0, 0, 0, 0, 0, 1e-42, 1e-42, 1e-42], np.float32)))
    assert found["int4"]["per_tensor"]["max_error"] < 1e-42
    assert found["outlier_threshold"] == pytest.approx(6 * np.sqrt(15 / 64) * 1e-42, rel=1e-2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_outliers_are_values_beyond_six_standard_deviations(dtype: str) -> None:
    values = np.concatenate([np.tile([1.0, -1.0], 4_998), [50.0, -50.0, 60.0, 5.0]])
    found: Any = tensor_quantization(tally_of(values, dtype))
    assert found["outlier_share"] == pytest.approx(3 / 10_000)
    assert found["outlier_threshold"] == pytest.approx(6 * values.std(), rel=1e-6)


def test_outliers_stand_apart_from_the_mean_not_from_zero() -> None:
    around_one = 1 + 1e-3 * np.random.default_rng(0).uniform(-1, 1, 50_000)
    assert tensor_quantization(tally_of(around_one))["outlier_share"] == 0
    assert tensor_quantization(tally_of(np.full(100, 0.3)))["outlier_share"] == 0
    assert tensor_quantization(tally_of([*around_one[:9_999], 2.0]))["outlier_share"] == pytest.approx(1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_with_the_values_given_nothing_is_read_from_ranges(dtype: str) -> None:
    values = stored_values(np.append(np.random.default_rng(1).standard_normal(50), np.nan), dtype)
    found: Any = tensor_quantization(tally_of(values, dtype), exact_values=values)
    assert found["resolution"] == 0
    for format in FORMATS:
        sqnr_db, max_error = figures_of(values[:-1], format)
        figure = found[format.name]["per_tensor"]
        assert figure["sqnr_db"] == pytest.approx(sqnr_db, rel=1e-12), format.name
        assert figure["max_error"] == pytest.approx(max_error, rel=1e-12), format.name


def test_the_smallest_format_has_the_fewest_bits_and_then_the_most_signal() -> None:
    found: Any = tensor_quantization(tally_of(torch.randn(50_000, generator=torch.Generator().manual_seed(4))))
    decibels = {name: found[name]["per_tensor"]["sqnr_db"] for name in NAMES}
    assert decibels["int4"] < 20
    assert decibels["nf4"] < 20
    assert decibels["int8"] > decibels["fp8_e4m3"] > 30
    assert found["smallest_30db"] == found["smallest_20db"] == "int8"
    assert found["smallest_30db_granularity"] == "per_tensor"
    few: Any = tensor_quantization(tally_of(np.linspace(-1, 1, 10_001)))
    assert few["int4"]["per_tensor"]["sqnr_db"] > few["nf4"]["per_tensor"]["sqnr_db"] > 20
    assert (few["smallest_30db"], few["smallest_20db"]) == ("int8", "int4")


def test_no_format_keeps_small_values_beside_a_peak_where_floats_have_no_near_number() -> None:
    """Scaled by 448/1000, 1.1875 is almost in the middle between two numbers of e4m3: 6 % off, as a million are."""
    found: Any = tensor_quantization(tally_of(np.concatenate([[1000.0], np.full(1_000_000, 1.1875)]), "bfloat16"))
    assert max(found[name]["per_tensor"]["sqnr_db"] for name in NAMES) < 30
    assert found["smallest_30db"] is found["smallest_30db_granularity"] is found["bytes_after"]["smallest_30db"] is None
    assert found["smallest_20db"] == "fp8_e4m3"


def test_bytes_after_count_a_float32_scale_and_half_a_byte_for_four_bits() -> None:
    after: Any = tensor_quantization(tally_of(np.linspace(-1, 1, 1_001)))["bytes_after"]
    assert {name: after[name] for name in NAMES} == {
        "int8": 1005, "int4": 505, "fp8_e4m3": 1005, "fp8_e5m2": 1005, "nf4": 505,
    }  # fmt: skip
    assert (after["smallest_30db"], after["smallest_20db"]) == (1005, 505)
