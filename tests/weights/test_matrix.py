from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from torchgauge.weights import SMALL_ELEMENTS, ArrayRows, matrix
from torchgauge.weights.matrix import matrix_figures, read_operand

TOLERANCE = 1e-4  # relative error of a spectral norm that is allowed

RNG = np.random.default_rng(7)


class BlockedRows(ArrayRows):
    """Blocks of a few rows in one buffer that the next block overwrites, as reading from a file may do."""

    def __init__(self, array: NDArray[Any], height: int, dtype: str | None = None) -> None:
        super().__init__("blocked", array, dtype)
        self._height = height
        self.passes = 0

    def blocks(self) -> Iterator[NDArray[Any]]:
        self.passes += 1
        (whole,) = super().blocks()
        buffer = np.empty((self._height, whole.shape[1]), whole.dtype)
        for top in range(0, len(whole), self._height):
            block = buffer[: len(whole[top : top + self._height])]
            block[:] = whole[top : top + self._height]
            yield block
        buffer[:] = 1e30


def orthogonal(size: int) -> NDArray[np.float64]:
    return np.linalg.qr(RNG.standard_normal((size, size)))[0]


def with_values(rows: int, columns: int, values: NDArray[np.float64]) -> NDArray[np.float64]:
    left, right = orthogonal(rows)[:, : len(values)], orthogonal(columns)[:, : len(values)]
    return (left * values) @ right.T


def true_norms(array: NDArray[Any]) -> tuple[int, float, float, float]:
    """In units of 2**exponent, the first of them: a power of two changes no digit, and here nothing overflows."""
    exponent = int(np.frexp(np.abs(array).max())[1])
    flat = np.ldexp(array.reshape(len(array), -1).astype(np.float64), -exponent)
    values = np.linalg.svd(flat, compute_uv=False)
    return exponent, values[0], (flat**2).sum() / values[0] ** 2, values[0] / values[-1]


MATRICES: dict[str, NDArray[Any]] = {
    "square": RNG.standard_normal((96, 96)),
    "tall": RNG.standard_normal((300, 40)).astype(np.float32),
    "wide": RNG.standard_normal((40, 300)).astype(np.float32),
    "two rows": RNG.standard_normal((2, 50)).astype(np.float32),
    "a convolution": RNG.standard_normal((32, 16, 3, 3)).astype(np.float32),
    "orthogonal": orthogonal(64),
    "heavy-tailed": RNG.standard_t(2, (80, 60)),
    "ill-conditioned": with_values(60, 50, np.logspace(0, -5, 50)),
    "one dominant direction": RNG.standard_normal((70, 90)) + 5.0,
    "huge values": RNG.standard_normal((30, 20)) * 1e300,
    "subnormal values": (RNG.standard_normal((30, 20)) * 1e-310),
    "large float32 values": (RNG.standard_normal((30, 20)) * 1e37).astype(np.float32),
}


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("small_elements", [0, SMALL_ELEMENTS])
def test_norm_stable_rank_and_condition_agree_with_the_singular_values(
    name: str, small_elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchgauge.weights.matrix.figures.SMALL_ELEMENTS", small_elements)
    exponent, norm, stable_rank, condition = true_norms(MATRICES[name])
    found: Any = matrix_figures(ArrayRows(name, MATRICES[name]))
    assert np.ldexp(found["spectral_norm"], -exponent) == pytest.approx(norm, rel=1e-4)
    assert found["stable_rank"] == pytest.approx(stable_rank, rel=2e-4)
    assert found["condition_estimate"] == pytest.approx(condition, rel=1e-2)
    assert found["condition_is_lower_bound"] is False
    assert found["condition_note"] is None
    assert 0 <= found["spectral_tolerance"] <= TOLERANCE


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("held_bytes", [0, 1 << 30])
def test_products_alone_find_the_norm_and_bound_the_condition_from_below(
    name: str, held_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchgauge.weights.matrix.figures.GRAM_MAX_SIDE", 0)
    monkeypatch.setattr("torchgauge.weights.matrix.figures.SMALL_ELEMENTS", 0)
    monkeypatch.setattr("torchgauge.weights.matrix.operand.HELD_BYTES", held_bytes)
    array = MATRICES[name]
    exponent, norm, stable_rank, condition = true_norms(array)
    rows = BlockedRows(array, 7)
    found: Any = matrix_figures(rows)
    assert (rows.passes == 1) is bool(held_bytes)
    assert np.ldexp(found["spectral_norm"], -exponent) == pytest.approx(norm, rel=1e-4)
    assert found["stable_rank"] == pytest.approx(stable_rank, rel=2e-4)
    if found["condition_estimate"] is None:
        assert found["condition_note"]
    else:
        assert found["condition_is_lower_bound"] is True
        assert 1 <= found["condition_estimate"] <= condition * 1.001


def test_the_tolerance_reported_covers_the_true_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchgauge.weights.matrix.figures.GRAM_MAX_SIDE", 300)
    array = RNG.standard_normal((301, 330)).astype(np.float32)
    norm = np.linalg.norm(array.astype(np.float64), 2)
    found: Any = matrix_figures(ArrayRows("w", array))
    assert found["condition_is_lower_bound"] is True
    assert norm * (1 - found["spectral_tolerance"]) <= found["spectral_norm"] <= norm * (1 + 1e-6)


def test_a_restarted_basis_still_converges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchgauge.weights.matrix.figures.GRAM_MAX_SIDE", 0)
    monkeypatch.setattr("torchgauge.weights.matrix.figures.SMALL_ELEMENTS", 0)
    monkeypatch.setattr("torchgauge.weights.matrix.lanczos._MAX_BASIS", 16)
    array = RNG.standard_normal((200, 150))
    found: Any = matrix_figures(ArrayRows("w", array))
    assert found["spectral_tolerance"] <= TOLERANCE
    assert found["spectral_norm"] == pytest.approx(np.linalg.norm(array, 2), rel=1e-4)


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("is_held", [True, False])
def test_blocks_of_rows_give_what_the_whole_matrix_gives(
    name: str, is_held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole: Any = matrix_figures(ArrayRows(name, MATRICES[name]), spectrum=True)
    if not is_held:
        monkeypatch.setattr("torchgauge.weights.matrix.operand.HELD_BYTES", 0)
        monkeypatch.setattr("torchgauge.weights.matrix.operand.PANEL_BYTES", 8 * 11 * MATRICES[name][0].size)
    blocked: Any = matrix_figures(BlockedRows(MATRICES[name], 7), spectrum=True)
    for key in ("spectral_norm", "stable_rank", "condition_estimate"):
        assert blocked[key] == pytest.approx(whole[key], rel=1e-5)
    found, expected = blocked["spectrum"]["singular_values"], whole["spectrum"]["singular_values"]
    assert found == pytest.approx(expected, abs=expected[0] * 1e-6)


def test_a_norm_beyond_float64_is_null_and_the_ratios_are_still_told() -> None:
    array = np.eye(20)
    # Its own numbers: others drawn before, in an order that varies, may make it singular.
    array[:10] = np.random.default_rng(1).choice([-1.0, 1.0], (10, 20))
    found: Any = matrix_figures(ArrayRows("w", array * np.finfo(np.float64).max), spectrum=True)
    _, _, stable_rank, condition = true_norms(array)
    assert found["spectral_norm"] is None
    assert found["spectrum"]["singular_values"][0] is None
    assert found["stable_rank"] == pytest.approx(stable_rank)
    assert found["condition_estimate"] == pytest.approx(condition)


def test_the_same_figures_come_every_time() -> None:
    rows = ArrayRows("w", RNG.standard_normal((50, 70)))
    state = np.random.get_state()[1].tobytes()  # type: ignore[index]
    assert matrix_figures(rows) == matrix_figures(rows)
    assert np.random.get_state()[1].tobytes() == state  # type: ignore[index]


@pytest.mark.parametrize("spectrum", [False, True])
def test_a_rank_deficient_matrix_has_a_note_instead_of_a_condition(spectrum: bool) -> None:
    found: Any = matrix_figures(ArrayRows("w", with_values(60, 50, np.ones(20))), spectrum=spectrum)
    assert found["spectral_norm"] == pytest.approx(1, rel=1e-4)
    assert found["stable_rank"] == pytest.approx(20, rel=1e-3)
    assert found["condition_estimate"] is None
    assert found["condition_is_lower_bound"] is None
    assert "rank deficient" in found["condition_note"]


def test_a_condition_that_a_gram_matrix_cannot_tell_is_not_told() -> None:
    found: Any = matrix_figures(ArrayRows("w", with_values(300, 300, np.logspace(0, -9, 300))))
    assert found["condition_estimate"] is None
    assert "above" in found["condition_note"]


def test_a_zero_matrix_has_the_norm_zero_and_no_rank() -> None:
    found: Any = matrix_figures(ArrayRows("w", np.zeros((5, 8), np.float32)), spectrum=True)
    assert found["spectral_norm"] == 0
    assert found["stable_rank"] is None
    assert found["spectrum"] is None
    assert (found["dead_rows"], found["dead_columns"]) == (5, 8)
    assert found["duplicate_rows"] == found["constant_rows"] == 0


def test_a_constant_matrix_has_rank_one() -> None:
    found: Any = matrix_figures(ArrayRows("w", np.full((6, 9), -0.5, np.float32)))
    assert found["spectral_norm"] == pytest.approx(0.5 * np.sqrt(54), rel=1e-6)
    assert found["stable_rank"] == pytest.approx(1)
    assert (found["constant_rows"], found["constant_columns"]) == (6, 9)
    assert (found["duplicate_rows"], found["duplicate_columns"]) == (5, 8)


@pytest.mark.parametrize("shape", [(7,), (1, 7), (7, 1), (0, 3), (3, 0)])
def test_what_is_no_matrix_has_no_figures(shape: tuple[int, ...]) -> None:
    found: Any = matrix_figures(ArrayRows("w", np.ones(shape, np.float32)), spectrum=True)
    assert set(found) == set(matrix.FIGURES)
    assert found.pop("matrix_note")
    assert set(found.values()) == {None}


@pytest.mark.parametrize("dtype", ["int8", "uint8", "bool", "float4_e2m1fn_x2", "float8_e8m0fnu", "complex64"])
def test_codes_have_no_figures(dtype: str) -> None:
    found: Any = matrix_figures(ArrayRows("w", np.ones((4, 4), np.float32), dtype))
    assert dtype in found["matrix_note"]
    assert found["spectral_norm"] is None


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float64"])
def test_every_floating_type_has_figures(dtype: str) -> None:
    assert matrix_figures(ArrayRows("w", np.eye(4, dtype=np.float32), dtype))["spectral_norm"] == pytest.approx(1)


def test_values_that_are_not_finite_count_as_zero() -> None:
    array = np.eye(4, dtype=np.float32)
    array[1, 1], array[2, 0] = np.inf, np.nan
    found: Any = matrix_figures(ArrayRows("w", array))
    assert found["spectral_norm"] == pytest.approx(1)
    assert found["matrix_examples"]["dead_rows"] == [1]


def test_reading_holds_small_matrices_only(monkeypatch: pytest.MonkeyPatch) -> None:
    array = RNG.standard_normal((6, 5)).astype(np.float32)
    monkeypatch.setattr("torchgauge.weights.matrix.operand.HELD_BYTES", array.nbytes - 1)
    assert read_operand(ArrayRows("w", array)).held is None
    monkeypatch.setattr("torchgauge.weights.matrix.operand.HELD_BYTES", array.nbytes)
    held = read_operand(BlockedRows(array, 4)).held
    assert held is not None
    assert np.array_equal(held, array)
