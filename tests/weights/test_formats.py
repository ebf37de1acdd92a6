"""Numbers against torch's own casts, a search of the nearest level, and grids that come back unchanged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import norm

from torchgauge.weights import FORMATS, FP8_E4M3, FP8_E5M2, INT4, INT8, NF4, Float8Format, Format, IntegerFormat

TORCH_FLOATS = [(FP8_E4M3, torch.float8_e4m3fn), (FP8_E5M2, torch.float8_e5m2)]


def by_name(format: Format) -> str:
    return format.name


def numbers_of(dtype: torch.dtype) -> NDArray[np.float32]:
    patterns = torch.arange(256).to(torch.uint8).view(dtype).float().numpy()
    return np.unique(patterns[np.isfinite(patterns)])


def around(values: NDArray[Any]) -> NDArray[Any]:
    ends = np.array([-np.inf, np.inf], values.dtype)
    return np.concatenate([np.nextafter(values, ends[0]), values, np.nextafter(values, ends[1])])


@pytest.mark.parametrize(("format", "dtype"), TORCH_FLOATS, ids=["e4m3", "e5m2"])
def test_float8_rounds_as_torch_casts_also_ties_and_subnormals(format: Float8Format, dtype: torch.dtype) -> None:
    numbers = numbers_of(dtype)
    middles = (numbers[1:] + numbers[:-1]) / 2
    probes = np.clip(np.concatenate([around(numbers), around(middles)]), -format.limit, format.limit)
    expected = torch.from_numpy(probes).to(dtype).float().numpy()
    assert np.array_equal(format.round(probes), expected)
    assert np.array_equal(format.round(probes.astype(np.float64)), expected)


@pytest.mark.parametrize(("format", "dtype"), TORCH_FLOATS, ids=["e4m3", "e5m2"])
def test_the_limit_of_a_float8_is_its_largest_number(format: Float8Format, dtype: torch.dtype) -> None:
    assert format.limit == torch.finfo(dtype).max == numbers_of(dtype).max()
    assert 2.0**format.min_exponent == torch.finfo(dtype).tiny


@pytest.mark.parametrize("format", [INT8, INT4], ids=by_name)
def test_whole_numbers_are_those_of_fake_quantization(format: IntegerFormat) -> None:
    values = torch.randn(20_000, generator=torch.Generator().manual_seed(0))
    absmax, limit = float(values.abs().max()), int(format.limit)
    scale = float(np.float32(absmax) / np.float32(limit))
    expected = torch.fake_quantize_per_tensor_affine(values, scale, 0, -limit, limit).numpy()
    assert np.array_equal(format.quantize(values.numpy(), absmax), expected)


def test_halves_go_to_the_even_whole_number() -> None:
    assert INT8.round(np.array([0.5, 1.5, 2.5, -0.5, -1.5])).tolist() == [0, 2, 2, 0, -2]


def test_nf4_levels_are_quantiles_of_the_normal_distribution() -> None:
    """QLoRA: 8 quantiles above 0 and 7 below, 0 itself, the outermost scaled to 1."""
    outermost = (1 - 1 / 32 + 1 - 1 / 30) / 2
    above = norm.ppf(np.linspace(outermost, 0.5, 9)[:-1])
    below = -norm.ppf(np.linspace(outermost, 0.5, 8)[:-1])
    levels = np.sort(np.concatenate([above, below, [0.0]]))
    assert np.allclose(NF4.levels, levels / levels.max(), atol=2e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nf4_takes_the_nearest_level(dtype: type[np.floating[Any]]) -> None:
    levels = np.array(NF4.levels, dtype)
    random = np.random.default_rng(0).uniform(-1, 1, 5_000).astype(dtype)
    values = np.clip(np.concatenate([random, around(levels), around(NF4.middles(dtype))]), -1, 1)
    distances = np.abs(values[:, None].astype(np.float64) - levels.astype(np.float64))
    taken = np.abs(values.astype(np.float64) - NF4.round(values).astype(np.float64))
    # In the middle both levels are as near, up to the rounding of the middle itself.
    assert np.all(taken <= distances.min(axis=1) + np.finfo(dtype).eps)
    assert set(NF4.round(values).tolist()) == set(levels.tolist())


def test_a_value_between_two_levels_takes_the_lower() -> None:
    middles = NF4.middles(np.float64)
    assert NF4.round(middles).tolist() == list(NF4.levels[:-1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_of_a_format_come_back_unchanged(dtype: type[np.floating[Any]]) -> None:
    grids = {
        INT8: np.arange(-127, 128), INT4: np.arange(-7, 8), NF4: np.array(NF4.levels, dtype),
        FP8_E4M3: numbers_of(torch.float8_e4m3fn), FP8_E5M2: numbers_of(torch.float8_e5m2),
    }  # fmt: skip
    for format, grid in grids.items():
        values = grid.astype(dtype)
        # With an absmax that is the limit the scale is 1; powers of two keep it exact.
        assert np.array_equal(format.quantize(values, format.limit), values), format.name
        assert np.array_equal(format.quantize(values / 64, format.limit / 64), values / 64), format.name


@pytest.mark.parametrize("format", FORMATS, ids=by_name)
@pytest.mark.parametrize("exponent", [-120, -20, 60])
def test_a_power_of_two_scales_the_result_exactly(format: Format, exponent: int) -> None:
    values = np.random.default_rng(1).standard_normal(1_000)
    absmax = float(np.abs(values).max())
    scaled = format.quantize(np.ldexp(values, exponent), float(np.ldexp(absmax, exponent)))
    assert np.array_equal(scaled, np.ldexp(format.quantize(values, absmax), exponent))


@pytest.mark.parametrize("format", FORMATS, ids=by_name)
@pytest.mark.parametrize("absmax", [1e-45, 1e-40, 3.4e38])
def test_extremes_of_float32_are_quantized_like_ordinary_values(format: Format, absmax: float) -> None:
    values = np.array([absmax, -absmax, 0.0], np.float32)
    assert np.allclose(format.quantize(values, float(values[0])), values, rtol=1e-6, atol=0)


@pytest.mark.parametrize("format", FORMATS, ids=by_name)
def test_zeros_stay_zeros(format: Format) -> None:
    assert format.quantize(np.zeros(3, np.float32), 0.0).tolist() == [0, 0, 0]
    assert format.quantize(np.array([0.0, 1.0]), 1.0)[0] == 0


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40), st.sampled_from(FORMATS))
def test_rounding_keeps_the_order_and_the_peak(values: list[float], format: Format) -> None:
    ordered = np.sort(np.array(values))
    absmax = float(np.abs(ordered).max())
    quantized = format.quantize(ordered, absmax)
    assert np.all(np.diff(quantized) >= 0)
    assert np.abs(quantized).max() == pytest.approx(absmax, rel=1e-12)
