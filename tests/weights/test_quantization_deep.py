"""Scales per row and per group against the plain arithmetic of `formats`, row by row."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from math import log10
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.weights.blocked import BlockedRows
from torchgauge.weights import FORMATS, ArrayRows, Format, row_quantization, tally_bytes, tensor_quantization
from torchgauge.weights.kernels import quantization as rounding

NAMES = [format.name for format in FORMATS]
Matrix = NDArray[Any]


def figures_of(matrix: Matrix) -> Any:
    found = tensor_quantization(tally_bytes(matrix.reshape(-1).view(np.uint8), str(matrix.dtype)))
    return row_quantization(BlockedRows("weight", matrix), found)


def expected(matrix: Matrix, format: Format, width: int) -> tuple[float, float]:
    """With a scale for each `width` values along a row; errors in the type of the values, sums in float64."""
    noise = worst = 0.0
    for row in matrix:
        for start in range(0, len(row), width):
            group = row[start : start + width]
            errors = (group - format.quantize(group, float(np.abs(group).max()))).astype(np.float64)
            noise += float(errors @ errors)
            worst = max(worst, float(np.abs(errors).max()))
    return 10 * log10(float((matrix.astype(np.float64) ** 2).sum()) / noise), worst


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(5, 300), (40, 27), (7, 128), (1, 1_000), (3, 2_049)])
def test_rows_and_groups_have_the_errors_of_plain_arithmetic(shape: tuple[int, int], dtype: type[Any]) -> None:
    matrix = np.random.default_rng(0).standard_t(4, shape).astype(dtype) * 0.02
    found = figures_of(matrix)
    for format in FORMATS:
        for grain, width in (("per_channel", shape[1]), ("group128", 128)):
            sqnr_db, max_error = expected(matrix, format, width)
            figure = found[format.name][grain]
            assert figure["sqnr_db"] == pytest.approx(sqnr_db, rel=1e-12), (format.name, grain)
            assert figure["max_error"] == max_error, (format.name, grain)


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), np.dtype(np.float64)])
def test_every_quantized_value_is_bit_equal_to_the_plain_arithmetic(dtype: np.dtype[Any]) -> None:
    random = np.random.default_rng(1)
    halves = np.concatenate([np.arange(-127, 128) / 2 + 0.25, np.ldexp(np.arange(1, 256), -13)]) / 127
    values = np.concatenate([random.standard_normal(2_000) / 5, halves]).clip(-1, 1).astype(dtype)
    buffers = rounding.new_buffers(1, values.size, dtype)
    peak = dtype.type(np.abs(values).max())
    buffers[0][rounding.VALUES, 0], buffers[2][0] = values, peak
    for number, format in enumerate(FORMATS):
        rounding.write_residuals(number, 1, rounding.grids(dtype), buffers)
        residuals = values - format.quantize(values, float(peak))
        assert np.array_equal(buffers[0][rounding.RESIDUALS, 0], residuals), format.name


def test_rows_of_zeros_subnormals_and_huge_values_do_not_disturb_each_other() -> None:
    matrix = np.random.default_rng(2).standard_normal((6, 200)).astype(np.float32)
    matrix[1] = 0
    matrix[2] *= 1e-39
    matrix[3] *= 1e37
    matrix[4, :128] = 0
    alone = np.delete(matrix, 3, axis=0)
    for each in (matrix, alone):
        found = figures_of(each)
        for format in FORMATS:
            assert found[format.name]["per_channel"]["sqnr_db"] == pytest.approx(expected(each, format, 200)[0])
            assert found[format.name]["group128"]["sqnr_db"] == pytest.approx(expected(each, format, 128)[0])


@pytest.mark.parametrize("exponent", [1000, -1000])
def test_doubles_beyond_the_range_of_their_squares_have_ordinary_figures(exponent: int) -> None:
    matrix = np.random.default_rng(3).standard_normal((4, 300))
    plain, scaled = figures_of(matrix), figures_of(np.ldexp(matrix, exponent))
    for name in NAMES:
        for grain in ("per_channel", "group128"):
            before, after = plain[name][grain], scaled[name][grain]
            assert after["sqnr_db"] == pytest.approx(before["sqnr_db"], rel=1e-12)
            assert after["max_error"] == np.ldexp(before["max_error"], exponent)


def test_rows_of_one_magnitude_gain_nothing_from_scales_of_their_own() -> None:
    matrix = np.random.default_rng(4).uniform(-1, 1, (8, 256)).astype(np.float32)
    matrix[:, [0, 200]] = 1
    found = figures_of(matrix)
    for format in FORMATS:
        assert found[format.name]["group128"] == found[format.name]["per_channel"] | {
            "bytes": found[format.name]["group128"]["bytes"]
        }
        assert found[format.name]["per_channel"]["sqnr_db"] == pytest.approx(expected(matrix, format, 256)[0])


def test_whole_numbers_err_by_half_a_step_at_most() -> None:
    matrix = np.random.default_rng(5).standard_normal((20, 500)).astype(np.float32)
    found = figures_of(matrix)
    largest = float(np.abs(matrix).max())
    for name, limit in (("int8", 127), ("int4", 7)):
        for grain in ("per_channel", "group128"):
            assert found[name][grain]["max_error"] <= largest / (2 * limit) * (1 + 1e-5)


def test_scales_per_row_rescue_rows_beside_one_with_a_peak() -> None:
    matrix = np.random.default_rng(6).uniform(-1, 1, (500, 400)).astype(np.float32)
    matrix[0] = 0
    matrix[0, 0] = 300
    found = figures_of(matrix)
    # All but the peak rounds to 0: 10 log10(1 + 300² / (499 · 400 / 3)).
    assert found["int8"]["per_tensor"]["sqnr_db"] == pytest.approx(10 * log10(1 + 90_000 * 3 / (499 * 400)), abs=0.1)
    assert found["int8"]["per_channel"]["sqnr_db"] > 48
    assert found["smallest_20db"] == "int4"
    assert found["smallest_20db_granularity"] == "group128"


def test_a_vector_has_one_scale_or_groups_wherever_its_blocks_end() -> None:
    vector = np.random.default_rng(7).standard_normal(1_000).astype(np.float32)
    found = figures_of(vector)
    for format in FORMATS:
        assert found[format.name]["per_channel"] == found[format.name]["per_tensor"]
        sqnr_db, max_error = expected(vector[None], format, 128)
        assert found[format.name]["group128"]["sqnr_db"] == pytest.approx(sqnr_db, rel=1e-12)
        assert found[format.name]["group128"]["max_error"] == max_error
    assert found["int8"]["group128"]["bytes"] == 1_000 + 4 * 8


def test_bytes_count_the_scales_of_each_granularity() -> None:
    matrix = np.random.default_rng(8).standard_normal((10, 300)).astype(np.float32)
    found = figures_of(matrix)
    assert [found["int8"][grain]["bytes"] for grain in ("per_tensor", "per_channel", "group128")] == [3004, 3040, 3120]
    assert [found["nf4"][grain]["bytes"] for grain in ("per_tensor", "per_channel", "group128")] == [1504, 1540, 1620]
    assert found["bytes_after"]["nf4"] == 1620
    assert found["bytes_after"]["smallest_30db"] == found["bytes_after"][found["smallest_30db"]]


def test_zeros_and_empty_tensors_have_no_signal() -> None:
    zeros = figures_of(np.zeros((4, 200), np.float32))
    assert zeros["int8"]["group128"] == {"sqnr_db": None, "max_error": 0.0, "bytes": 800 + 32}
    assert zeros["smallest_20db"] is None
    empty = figures_of(np.zeros((0, 5), np.float32))
    assert empty["nf4"]["group128"]["max_error"] is empty["nf4"]["per_channel"]["max_error"] is None


def test_what_was_found_before_is_kept_and_not_written_to() -> None:
    matrix = np.random.default_rng(9).standard_normal((4, 200)).astype(np.float32)
    before: Any = tensor_quantization(tally_bytes(matrix.reshape(-1).view(np.uint8), "float32"))
    kept = copy.deepcopy(before)
    found: Any = row_quantization(ArrayRows("weight", matrix), before)
    assert before == kept
    assert found["outlier_share"] == before["outlier_share"]
    assert found["int8"]["per_tensor"] == before["int8"]["per_tensor"]


def test_threads_do_not_disturb_each_other() -> None:
    matrices = [np.random.default_rng(seed).standard_normal((30, 700)).astype(np.float32) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(figures_of, matrices)) == [figures_of(matrix) for matrix in matrices]
