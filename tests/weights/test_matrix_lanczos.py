from __future__ import annotations

import numpy as np
import pytest

from torchgauge.weights.matrix import lanczos, largest_eigenvalue

RNG = np.random.default_rng(5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_accumulate_in_float64(dtype: type[np.floating]) -> None:
    block = RNG.standard_normal((13, 29)).astype(dtype)
    exact = block.astype(np.float64)
    across, along = RNG.standard_normal(29), RNG.standard_normal(13)
    dots, sums, squares = np.empty(13), np.ones(29), np.ones(29)
    lanczos.dot_rows(block, across, dots)
    lanczos.add_rows(block, along, sums)
    lanczos.add_squared(block, across, squares)
    assert dots == pytest.approx(exact @ across, rel=1e-12)
    assert sums == pytest.approx(1 + along @ exact, rel=1e-12)
    assert squares == pytest.approx(1 + exact.T @ (exact @ across), rel=1e-12)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 11, 64])
def test_the_factor_of_a_positive_definite_matrix_solves_it(size: int) -> None:
    half = RNG.standard_normal((size, 2 * size))
    matrix = half @ half.T
    factor = matrix.copy()
    assert lanczos.factorize(factor)
    assert np.tril(factor) == pytest.approx(np.linalg.cholesky(matrix), rel=1e-9, abs=1e-9)
    right = RNG.standard_normal(size)
    assert matrix @ lanczos.solve(factor, right) == pytest.approx(right, rel=1e-7, abs=1e-9)


@pytest.mark.parametrize("bad", [0, 3, 6])
def test_a_matrix_that_is_not_positive_definite_has_no_factor(bad: int) -> None:
    matrix = np.eye(7)
    matrix[bad, bad] = -1.0
    assert not lanczos.factorize(matrix)


@pytest.mark.parametrize("size", [1, 2, 40])
def test_eigenvalues_of_a_tridiagonal_matrix_are_found_by_index(size: int) -> None:
    diagonal, beside = RNG.standard_normal(size), RNG.standard_normal(size - 1)
    matrix = np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
    expected = np.linalg.eigvalsh(matrix)
    found = [lanczos.eigenvalue(diagonal, beside, index) for index in range(size)]
    assert found == pytest.approx(expected.tolist(), abs=1e-12)
    direction = lanczos.top_direction(diagonal, beside)
    assert matrix @ direction == pytest.approx(expected[-1] * direction, abs=1e-9)


def test_the_closed_form_of_the_second_difference_is_met() -> None:
    size = 100
    diagonal, beside = np.full(size, 2.0), np.full(size - 1, -1.0)
    largest = 2 - 2 * np.cos(np.pi * size / (size + 1))
    assert lanczos.eigenvalue(diagonal, beside, size - 1) == pytest.approx(largest, rel=1e-14)
    assert lanczos.eigenvalue(diagonal, beside, 0) == pytest.approx(4 - largest, rel=1e-11)


def test_vectors_are_made_orthogonal_to_rounding() -> None:
    basis = np.linalg.qr(RNG.standard_normal((50, 10)))[0].T.copy()
    vector = RNG.standard_normal(50) * 1e-6 + 1e6 * basis.sum(axis=0)
    lanczos.project_out(basis, vector)
    assert np.abs(basis @ vector).max() <= 1e-10 * np.linalg.norm(vector) + 1e-9


def test_an_invariant_space_ends_the_iteration() -> None:
    # Two distinct eigenvalues: the second product already spans all that the start can reach.
    values = np.where(np.arange(60) < 20, 7.0, 2.0)
    found = largest_eigenvalue(lambda vector: values * vector, 60, tolerance=1e-300)
    assert (found.products, found.residual) == (2, 0.0)
    assert (found.largest, found.smallest) == pytest.approx((7.0, 2.0))


def test_ritz_values_stay_within_the_spectrum_and_the_residual_covers_the_error() -> None:
    values = np.sort(RNG.uniform(1, 10, 400))
    for tolerance in (1e-1, 1e-2, 1e-3, 1e-6):
        found = largest_eigenvalue(lambda vector: values * vector, 400, tolerance=tolerance)
        assert found.residual <= tolerance * found.largest
        assert np.abs(values - found.largest).min() <= found.residual * (1 + 1e-9) + 1e-12
        assert values[0] * (1 - 1e-12) <= found.smallest <= found.largest <= values[-1] * (1 + 1e-12)


def test_the_number_of_products_is_bounded() -> None:
    values = np.linspace(1, 2, 2000)
    found = largest_eigenvalue(lambda vector: values * vector, 2000, tolerance=1e-14, max_products=7)
    assert found.products == 7
    assert found.residual > 0


def test_a_small_basis_is_restarted_until_it_converges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchgauge.weights.matrix.lanczos._MAX_BASIS", 8)
    values = np.concatenate([np.linspace(1, 2, 199), [2.2]])
    found = largest_eigenvalue(lambda vector: values * vector, 200, tolerance=1e-8)
    assert found.products > 8
    assert found.largest == pytest.approx(2.2, rel=1e-10)
