"""Grams from joules: closed forms, the shipped table, and requests that make no sense."""

from __future__ import annotations

from typing import Any

import pytest

from torchgauge.energy import BOUNDARY, Footprint, footprint, given_grid, grid_of, grids
from torchgauge.errors import UsageError

KWH = 3.6e6


def test_a_kilowatt_hour_emits_the_grids_intensity_times_the_overhead() -> None:
    assert Footprint(given_grid(350), pue=1.2).grams(KWH) == pytest.approx(420)


def test_measured_energy_gives_one_figure_per_thousand_and_per_year() -> None:
    found = Footprint(given_grid(500)).figures({"joules": 7.2, "estimated_joules": None}, samples=2)
    assert found["grams_per_1000"] == pytest.approx(1000 * 3.6 / KWH * 500)
    assert found["grams_per_year"] == pytest.approx(365 * 24 * 3600 * 3.6 / KWH * 500)
    assert found["rate_per_s"] == 1.0
    assert (found["pue"], found["boundary"]) == (1.0, BOUNDARY)
    assert not any(name.startswith("estimated") for name in found)


def test_a_year_is_at_the_rate_that_was_given() -> None:
    fast = footprint(None, 500.0, None, 20.0)
    assert fast is not None
    found = fast.figures({"joules": 7.2})
    assert found["rate_per_s"] == 20.0
    assert found["grams_per_year"] == pytest.approx(20 * 365 * 24 * 3600 * 7.2 / KWH * 500)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_is_above_nothing_and_needs_a_grid(rate: float) -> None:
    with pytest.raises(UsageError, match="samples per second"):
        footprint("DE", None, None, rate)
    with pytest.raises(UsageError, match="--carbon-rate needs a grid"):
        footprint(None, None, None, rate)


def test_estimated_energy_gives_a_range_under_another_name() -> None:
    energy = {"joules": None, "estimated_joules": {"value": 2.0, "low": 1.0, "high": 4.0}}
    found: Any = Footprint(given_grid(360)).figures(energy)
    assert "grams_per_1000" not in found
    assert found["estimated_grams_per_1000"] == pytest.approx({"value": 0.2, "low": 0.1, "high": 0.4})
    assert set(found["estimated_grams_per_year"]) == {"value", "low", "high"}


def test_without_energy_only_the_grid_is_shown() -> None:
    found = Footprint(grid_of("DE")).figures({"joules": None})
    assert found["country"] == "DE"
    assert not any("grams" in name for name in found)


def test_every_grid_has_a_year_a_source_and_a_plausible_intensity() -> None:
    assert len(grids()) > 120
    for grid in grids().values():
        assert 20 <= grid.g_per_kwh <= 1400
        assert grid.year is not None
        assert 2022 <= grid.year <= 2024
        assert "Ember" in grid.source
        assert grid.code in ("WORLD", "EU") or (grid.code and len(grid.code) == 2 and grid.code.isupper())


@pytest.mark.parametrize(("cleaner", "dirtier"), [("FR", "DE"), ("DE", "PL"), ("NO", "IN"), ("SE", "US"), ("EU", "CN")])
def test_grids_are_in_their_known_order(cleaner: str, dirtier: str) -> None:
    assert grid_of(cleaner).g_per_kwh < grid_of(dirtier).g_per_kwh


@pytest.mark.parametrize(("text", "code"), [("de", "DE"), (" UK ", "GB"), ("France", "FR"), ("world", "WORLD")])
def test_codes_and_names_are_taken_in_any_case(text: str, code: str) -> None:
    assert grid_of(text).code == code


def test_an_unknown_code_is_answered_with_near_ones() -> None:
    with pytest.raises(UsageError, match=r"no electricity figures for 'DX'. Did you mean DE \(Germany\), DK"):
        grid_of("DX")
    with pytest.raises(UsageError, match=r"Did you mean DE \(Germany\)"):
        grid_of("Germny")
    with pytest.raises(UsageError, match="ISO 3166-1"):
        grid_of("")


def test_nothing_asked_for_is_nothing() -> None:
    assert footprint(None, None, None) is None


def test_a_profile_takes_the_worlds_grid_by_default_and_says_so() -> None:
    found = footprint(None, None, 1.2, has_default=True)
    assert found is not None
    figures = found.figures({"joules": 3.6e6})
    assert (figures["country"], figures["pue"]) == ("WORLD", 1.2)
    assert figures["assumed"] == "no country was given (--carbon CC)"
    given = footprint("DE", None, None, has_default=True)
    assert given is not None
    assert (given.grid.code, given.figures({})["assumed"]) == ("DE", None)


def test_the_overhead_is_one_unless_given() -> None:
    plain = footprint("DE", None, None)
    given = footprint(None, 350.0, 1.5)
    assert plain is not None
    assert plain.pue == 1.0
    assert given is not None
    assert (given.grid.g_per_kwh, given.pue, given.grid.code) == (350.0, 1.5, None)


@pytest.mark.parametrize(
    ("country", "intensity", "pue", "message"),
    [
        ("DE", 350.0, None, "not both"),
        (None, None, 1.2, "--pue needs a grid"),
        ("DE", None, 0.9, "PUE must be 1"),
        ("DE", None, float("nan"), "PUE must be 1"),
        (None, -1.0, None, "grams of CO2e per kWh"),
        (None, 5000.0, None, "grams of CO2e per kWh"),
    ],
)
def test_invalid_options_are_refused(
    country: str | None, intensity: float | None, pue: float | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        footprint(country, intensity, pue)
