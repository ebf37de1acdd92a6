"""Figures against numpy and scipy in float64, and closed forms."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from torchgauge.weights import HISTOGRAM_BINS, QUANTILES, SYMBOLS, decode, empty_tally, tally_bytes, value_statistics

RNG = np.random.default_rng(5)
SHARES = [float(text) for text in QUANTILES]
SHAPES = {
    "random": RNG.standard_normal(30_000) * 0.02,
    "heavy-tailed": RNG.standard_t(2.5, 30_000),
    "offset": 1e4 + RNG.standard_normal(30_000),
    "one-sided": RNG.exponential(3.0, 30_000),
    "sparse": np.where(RNG.random(30_000) < 0.7, 0.0, RNG.standard_normal(30_000)),
}
FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
# The others are too coarse for values so close together.
STORED = [(shape, dtype) for shape in SHAPES for dtype in FLOATS if shape != "offset" or dtype in FLOATS[:3]]


def stored(values: NDArray[np.float64], dtype: str) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    tensor = torch.from_numpy(values).to(getattr(torch, dtype))
    content = tensor.view(torch.uint8).numpy()
    kept = tensor.to(torch.float64).numpy()
    return content, kept[np.isfinite(kept)]


def figures_of(content: NDArray[np.uint8], dtype: str, *, exact: bool = False) -> Any:
    return value_statistics(tally_bytes(content, dtype), exact_values=decode(content, dtype) if exact else None)


@pytest.mark.parametrize(("shape", "dtype"), STORED)
def test_moments_and_norms_agree_with_scipy(shape: str, dtype: str) -> None:
    content, values = stored(SHAPES[shape], dtype)
    found = figures_of(content, dtype)
    std = values.std()
    assert found["std"] == pytest.approx(std, rel=1e-9)
    assert found["mean"] == pytest.approx(values.mean(), abs=1e-9 * std)
    assert found["skewness"] == pytest.approx(scipy.stats.skew(values), rel=1e-7, abs=1e-7)
    assert found["kurtosis"] == pytest.approx(scipy.stats.kurtosis(values), rel=1e-7, abs=1e-7)
    assert found["l1"] == pytest.approx(math.fsum(np.abs(values)), rel=1e-12)
    assert found["l2"] == pytest.approx(np.linalg.norm(values), rel=1e-12)
    assert (found["min"], found["max"]) == (values.min(), values.max())
    assert found["abs_max"] == np.abs(values).max()
    assert found["sparsity"] == (values == 0).sum() / len(SHAPES[shape])


@pytest.mark.parametrize(("shape", "dtype"), STORED)
def test_quantiles_are_within_their_resolution(shape: str, dtype: str) -> None:
    content, values = stored(SHAPES[shape], dtype)
    found = figures_of(content, dtype)
    resolution = found["quantile_resolution"]
    assert resolution == SYMBOLS[dtype].resolution
    for share, text in zip(SHARES, QUANTILES, strict=True):
        expected = np.quantile(values, share)
        assert found["quantiles"][text] == pytest.approx(expected, rel=max(resolution, 1e-14), abs=1e-300)


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "uint32"])
def test_quantiles_are_exact_where_the_values_are_given(dtype: str) -> None:
    values = np.abs(RNG.standard_normal(4001) * 1e6).astype(dtype)
    found = figures_of(values.view(np.uint8), dtype, exact=True)
    expected = np.quantile(values.astype(np.float64), SHARES)
    assert found["quantile_resolution"] == 0
    assert list(found["quantiles"].values()) == pytest.approx(expected, rel=1e-14)
    np.testing.assert_array_equal(found["histogram"]["counts"], np.histogram(values.astype(np.float64), 64)[0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "int16", "uint8"])
def test_histograms_of_narrow_types_are_numpys(dtype: str) -> None:
    content, values = stored(RNG.standard_normal(20_000) * 25 + 60, dtype)
    found = figures_of(content, dtype)["histogram"]
    counts, edges = np.histogram(values, HISTOGRAM_BINS)
    assert found["edges"] == pytest.approx(edges, rel=1e-14)
    # A value on an edge may go either way by the rounding of the edge.
    assert (
        np.abs(np.cumsum(found["counts"]) - np.cumsum(counts)).max() <= np.unique(values, return_counts=True)[1].max()
    )
    assert sum(found["counts"]) == len(values)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_histograms_of_wide_types_are_off_by_little(dtype: str) -> None:
    content, values = stored(SHAPES["random"], dtype)
    found = figures_of(content, dtype)["histogram"]
    counts, _ = np.histogram(values, HISTOGRAM_BINS)
    assert np.abs(np.subtract(found["counts"], counts)).max() < 0.03 * counts.max()
    assert sum(found["counts"]) == len(values)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 0.01), ("float64", 0.005), ("bfloat16", 0), ("int64", 0)])
def test_near_zero_is_the_share_below_a_hundredth_of_the_spread(dtype: str, tolerance: float) -> None:
    plain = RNG.standard_normal(200_000) * (3e4 if dtype == "int64" else 0.02)
    content, values = stored(plain, dtype)
    expected = (np.abs(values) < 0.01 * values.std()).mean()
    found = figures_of(content, dtype)["near_zero"]
    assert found == pytest.approx(expected, rel=tolerance + (0.01 if dtype == "int64" else 1e-12))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_a_value_of_exactly_a_hundredth_of_the_spread_is_not_near_zero(dtype: str) -> None:
    values = np.array([0.0, 0.0, 1.0, -1.0, 1.0, -1.0, 0.0, 0.0])
    assert figures_of(stored(values, dtype)[0], dtype)["near_zero"] == 0.5


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int32", "uint8"])
def test_a_constant_tensor_has_one_bin_and_no_spread(dtype: str) -> None:
    found = figures_of(stored(np.full(5000, 3.0), dtype)[0], dtype)
    assert (found["mean"], found["std"], found["skewness"], found["kurtosis"]) == (3.0, 0.0, None, None)
    assert found["histogram"] == {"edges": [3.0, 3.0], "counts": [5000]}
    assert set(found["quantiles"].values()) == {3.0}
    assert (found["entropy_bits"], found["compressibility"], found["near_zero"]) == (0.0, 1.0, 0.0)
    assert found["l2"] == pytest.approx(3 * math.sqrt(5000))


def test_zeros_are_near_zero_also_without_any_spread() -> None:
    found = figures_of(np.zeros(400, dtype=np.uint8), "float32")
    assert (found["sparsity"], found["near_zero"], found["std"]) == (1.0, 1.0, 0.0)


@pytest.mark.parametrize("dtype", sorted(SYMBOLS))
def test_figures_of_nothing_are_null(dtype: str) -> None:
    found: Any = value_statistics(empty_tally(dtype))
    nulls = {key for key, value in found.items() if value is None}
    assert {"mean", "std", "min", "max", "quantiles", "histogram", "entropy_bits", "sparsity", "near_zero"} <= nulls
    assert (found["nan"], found["finite"]) == (0, 0)


def test_figures_without_finite_values_still_count() -> None:
    content = np.array([np.nan, np.inf, -np.inf, np.nan], dtype=np.float32).view(np.uint8)
    found = figures_of(content, "float32")
    assert (found["nan"], found["inf"], found["finite"], found["mean"], found["quantiles"]) == (2, 2, 0, None, None)
    assert found["entropy_bits"] == 1.5
    assert (found["sparsity"], found["near_zero"]) == (0.0, 0.0)


def test_one_value_is_its_own_everything() -> None:
    found = figures_of(np.array([-2.5], dtype=np.float32).view(np.uint8), "float32")
    assert (found["mean"], found["min"], found["max"], found["std"], found["l1"], found["l2"]) == (
        -2.5, -2.5, -2.5, 0.0, 2.5, 2.5,
    )  # fmt: skip
    assert found["quantiles"]["0.5"] == -2.5


def test_a_two_point_distribution_has_its_closed_form() -> None:
    """p = 1/4 at 1, else 0: skewness (1−2p)/√(p(1−p)), excess kurtosis (1−6p(1−p))/(p(1−p))."""
    values = np.tile(np.array([1.0, 0, 0, 0], dtype=np.float32), 4000)
    found = figures_of(values.view(np.uint8), "float32")
    assert found["skewness"] == pytest.approx(0.5 / math.sqrt(3 / 16), rel=1e-12)
    assert found["kurtosis"] == pytest.approx((1 - 6 * 3 / 16) / (3 / 16), rel=1e-12)
    assert found["entropy_bits"] == pytest.approx(scipy.stats.entropy([0.25, 0.75], base=2), rel=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint32", "uint64", "bfloat16", "int8"])
def test_entropy_is_that_of_the_upper_sixteen_bits(dtype: str) -> None:
    item = SYMBOLS[dtype].item_bits // 8
    content = RNG.integers(0, 256, 4000 * item, dtype=np.uint8)
    found = figures_of(content, dtype)
    symbols = content.view(f"u{item}") >> max(item * 8 - 16, 0)
    counts = np.unique(symbols, return_counts=True)[1]
    assert found["entropy_bits"] == pytest.approx(scipy.stats.entropy(counts, base=2), rel=1e-12)
    assert found["entropy_symbol_bits"] == min(item * 8, 16)
    assert found["compressibility"] == pytest.approx(1 - found["entropy_bits"] / found["entropy_symbol_bits"])


@pytest.mark.parametrize("scale", [1e300, 1e-310, 1.0])
def test_extreme_float64_values_have_figures(scale: float) -> None:
    values = RNG.standard_normal(5000) * scale
    found = figures_of(values.view(np.uint8), "float64")
    plain = values / scale
    assert found["std"] == pytest.approx(plain.std() * scale, rel=1e-9)
    assert found["kurtosis"] == pytest.approx(scipy.stats.kurtosis(plain), abs=1e-7)
    assert found["l2"] == pytest.approx(np.linalg.norm(plain) * scale, rel=1e-9)
    assert sum(found["histogram"]["counts"]) == 5000


def test_a_norm_beyond_float64_is_null_and_the_rest_is_there() -> None:
    # Not the largest double: how a sum is rounded depends on the processor's vectors, and may round the std up.
    large = np.finfo(np.float64).max / 2
    found = figures_of(np.tile(np.array([large, -large]), 50).view(np.uint8), "float64")
    assert (found["l1"], found["l2"], found["mean"]) == (None, None, 0.0)
    assert found["std"] == pytest.approx(large, rel=1e-12)
    assert found["histogram"]["counts"] == [50] + [0] * 62 + [50]
    assert found["quantiles"]["0.5"] == 0.0


@given(arrays(np.uint8, st.integers(1, 60).map(lambda n: 8 * n)), st.sampled_from(sorted(SYMBOLS)), st.booleans())
@settings(max_examples=150, deadline=None)
def test_figures_of_any_bytes_are_plain_json_and_consistent(
    content: NDArray[np.uint8], dtype: str, exact: bool
) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        found = figures_of(content, dtype, exact=exact)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    if not found["finite"]:
        return
    quantiles = list(found["quantiles"].values())
    assert found["min"] <= quantiles[0]
    assert quantiles == sorted(quantiles)
    assert quantiles[-1] <= found["max"]
    assert sum(found["histogram"]["counts"]) == found["finite"]
    assert min(found["histogram"]["counts"]) >= 0
    assert found["sparsity"] <= found["near_zero"] <= 1
    assert 0 <= found["entropy_bits"] <= found["entropy_symbol_bits"] + 1e-12
