from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from torchgauge.weights import ArrayRows
from torchgauge.weights.matrix import figures, matrix_figures

RNG = np.random.default_rng(3)


@pytest.mark.parametrize("shape", [(30, 50), (300, 200), (400, 1000), (1000, 400)])
def test_all_singular_values_agree_with_a_decomposition(shape: tuple[int, int]) -> None:
    array = RNG.standard_normal(shape).astype(np.float32)
    expected = np.linalg.svd(array.astype(np.float64), compute_uv=False)
    found: Any = matrix_figures(ArrayRows("w", array), spectrum=True)
    kept = expected[np.round(np.linspace(0, len(expected) - 1, min(len(expected), 256))).astype(int)]
    assert found["spectrum"]["singular_values"] == pytest.approx(kept.tolist(), rel=1e-9)
    assert found["spectrum"]["rank"] == min(shape)
    assert found["spectral_norm"] == pytest.approx(expected[0], rel=1e-12)
    assert found["condition_estimate"] == pytest.approx(expected[0] / expected[-1], rel=1e-8)


def test_equal_singular_values_have_full_effective_rank() -> None:
    found: Any = matrix_figures(ArrayRows("w", 3 * np.eye(40)), spectrum=True)["spectrum"]
    assert found["effective_rank"] == pytest.approx(40)
    assert found["energy_rank"] == 40
    assert found["low_rank"] == {error: {"rank": 40, "params_saved": 0} for error in ("0.01", "0.05")}
    assert found["power_law"] is None


def test_a_low_rank_matrix_plus_noise_has_its_rank_found_at_the_noise() -> None:
    signal = RNG.standard_normal((200, 5)) @ RNG.standard_normal((5, 120))
    noise = RNG.standard_normal((200, 120))
    array = signal + noise * (0.03 * np.linalg.norm(signal) / np.linalg.norm(noise))
    found: Any = matrix_figures(ArrayRows("w", array), spectrum=True)["spectrum"]
    assert found["low_rank"]["0.05"] == {"rank": 5, "params_saved": 200 * 120 - 5 * 320}
    assert found["low_rank"]["0.01"]["rank"] > 5
    assert found["energy_rank"] == 5
    assert 1 < found["effective_rank"] < 6


def test_the_rank_at_an_error_is_the_least_that_keeps_it() -> None:
    values = np.array([3.0, 2.0, 1.0, 0.5])
    total = np.sqrt((values**2).sum())
    for rank in range(5):
        error = float(np.sqrt((values[rank:] ** 2).sum()) / total)
        assert figures.rank_at(values, error * (1 + 1e-12)) == rank
        assert rank == 4 or figures.rank_at(values, error * (1 - 1e-12)) == rank + 1


def test_two_energies_have_the_effective_rank_of_their_entropy() -> None:
    values = np.sqrt(np.array([0.75, 0.25]))
    entropy = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    assert figures.effective_rank(values) == pytest.approx(np.exp(entropy))


def test_a_side_above_the_limit_has_norms_and_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchgauge.weights.matrix.figures.MAX_SIDE", 10)
    found: Any = matrix_figures(ArrayRows("w", RNG.standard_normal((12, 11))), spectrum=True)
    assert found["spectrum"] is None
    assert "more than 10" in found["matrix_note"]
    assert found["spectral_norm"] > 0


def pareto(count: int, alpha: float, xmin: float = 1.0) -> NDArray[np.float64]:
    """Quantiles of a Pareto distribution: no chance in it."""
    uniform = (np.arange(count) + 0.5) / count
    return xmin * (1 - uniform) ** (-1 / (alpha - 1))


@pytest.mark.parametrize("alpha", [1.8, 2.5, 4.0])
def test_the_exponent_of_pareto_values_is_found(alpha: float) -> None:
    found = figures.fit_power_law(pareto(2000, alpha, 0.3))
    assert found is not None
    assert found.alpha == pytest.approx(alpha, rel=0.02)
    assert found.ks < 0.01
    assert found.alpha_error == pytest.approx((found.alpha - 1) / np.sqrt(found.tail))


def test_the_tail_starts_where_the_power_law_does() -> None:
    body = RNG.uniform(0.0, 1.0, 1000)
    found = figures.fit_power_law(np.concatenate([body, pareto(1000, 3.0, 1.0)]))
    assert found is not None
    assert found.xmin == pytest.approx(1.0, rel=0.1)
    assert found.alpha == pytest.approx(3.0, rel=0.05)


def test_the_exponent_does_not_depend_on_the_unit() -> None:
    values = RNG.pareto(2.0, 300) + 1
    first, second = figures.fit_power_law(values), figures.fit_power_law(values * 1e-9)
    assert first is not None
    assert second is not None
    assert (second.alpha, second.ks, second.tail) == pytest.approx((first.alpha, first.ks, first.tail), rel=1e-9)
    assert second.xmin == pytest.approx(first.xmin * 1e-9)


@pytest.mark.parametrize("values", [pareto(figures.MIN_TAIL_POINTS - 1, 2.5), np.ones(100), np.zeros(100), np.empty(0)])
def test_too_few_or_equal_values_have_no_exponent(values: NDArray[np.float64]) -> None:
    assert figures.fit_power_law(values) is None


def test_the_law_is_that_of_the_correlation_matrix() -> None:
    values = np.sqrt(pareto(64, 2.5) * 100)
    array = np.zeros((64, 100))
    array[range(64), range(64)] = values
    spectrum: Any = matrix_figures(ArrayRows("w", array), spectrum=True)["spectrum"]
    found = spectrum["power_law"]
    expected = figures.fit_power_law(pareto(64, 2.5))
    assert expected is not None
    assert found == pytest.approx(expected.to_dict(), rel=1e-9)
