from __future__ import annotations

from typing import Any

import pytest

from tests.measure.fake_nvml import BUSY, PLACE, UUID, FakeNvml
from torchgauge.energy import EnergyWindow, Trial, drift, quantities, thermal_figures
from torchgauge.measure import opened, sampling


def trial(joules: float, degrees: float | None) -> Trial:
    return Trial(EnergyWindow(joules, 1.0, 1), degrees)


def sampled(values: dict[str, dict[str, int]]) -> Any:
    with opened(UUID, PLACE, lambda: FakeNvml(values)) as device, sampling(quantities=quantities(device, "cuda")) as s:
        pass
    return s.figures()


def test_drift_is_the_slope_of_energy_over_temperature() -> None:
    found = drift([trial(10.0 + 0.5 * degree, degree) for degree in (40.0, 44.0, 52.0)])
    assert found is not None
    assert found["joules_per_degree"] == pytest.approx(0.5)
    assert found["correlation"] == pytest.approx(1.0)
    assert found["first_to_last"] == pytest.approx(36 / 30 - 1)


def test_a_steady_temperature_has_no_slope() -> None:
    found = drift([trial(10.0, 50.0), trial(11.0, 50.0)])
    assert found == {"joules_per_degree": None, "correlation": None, "first_to_last": pytest.approx(0.1)}


def test_without_a_thermometer_there_is_no_drift() -> None:
    assert drift([trial(10.0, None), trial(11.0, None)]) is None


def test_throttling_has_its_reasons_and_idling_is_not_one() -> None:
    found = thermal_figures(sampled(BUSY), [])
    assert found["is_throttled"] is True
    assert found["throttled"] == {"power_cap": 1.0, "thermal_software": 1.0}
    idle = BUSY | {"nvmlDeviceGetCurrentClocksThrottleReasons": {"value": 0x1 | 0x2}}
    assert thermal_figures(sampled(idle), [])["is_throttled"] is False


def test_series_have_the_units_of_their_names() -> None:
    found: Any = thermal_figures(sampled(BUSY), [])
    assert found["temperature_c"]["max"] == 54
    assert found["clock_hz"]["max"] == 1.98e9
    assert found["series"]["power_w"]["values"][-1] == 702.5


def test_a_driver_without_instant_power_shows_the_mean() -> None:
    values = {name: value for name, value in BUSY.items() if name != "nvmlDeviceGetFieldValues"}
    with opened(UUID, PLACE, lambda: FakeNvml(values)) as device:
        power = next(q for q in quantities(device, "cuda") if q.name == "cuda_power_instant_w")
        assert power.now() == 651.25


def test_unreadable_values_are_absent_with_a_reason() -> None:
    found = thermal_figures(sampled({}), [])
    assert (found["is_throttled"], found["temperature_c"]) == (None, None)
    assert found["absent"]["cuda_temperature_c"] == "NVML: Not Supported"
