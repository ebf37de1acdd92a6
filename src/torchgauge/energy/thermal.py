"""Temperatures and clocks during the run, throttling, and the effect of heat on energy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import correlation, fmean, linear_regression
from typing import TYPE_CHECKING, cast

from torchgauge.energy.energy_window import Trial
from torchgauge.measure.absence import Absent
from torchgauge.measure.nvml import Device
from torchgauge.measure.readings import Quantity, cuda_quantities, processor_quantities

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Ends, Series, System, Thermal

POWER, TEMPERATURE, CLOCK, THROTTLED = "power_w", "temperature_c", "clock_hz", "throttled_share"
# Names of the figures, by the sampler's names.
_NAMES = {
    "cuda_power_instant_w": POWER, "cuda_temperature_c": TEMPERATURE, "cuda_sm_clock_hz": CLOCK,
    "temperature_c": TEMPERATURE, "cpu_frequency_hz": CLOCK,
}  # fmt: skip
# Reasons that slow the device down; the others are settings, or idling.
HELD_BACK = ("power_cap", "hardware_slowdown", "thermal_software", "thermal_hardware", "power_brake")
# Share of the run; less is not reported as throttling.
_MIN_THROTTLED_SHARE = 0.02


def quantities(device: Device | Absent, kind: str) -> Iterator[Quantity]:
    """Quantities of the device that are sampled during the trials."""
    if kind != "cuda":
        yield from (found for found in processor_quantities() if found.name in _NAMES)
        return
    yield from (found for found in cuda_quantities(device) if found.name in (*_NAMES, "cuda_throttled_share"))

    def power() -> float | Absent:
        if isinstance(device, Absent):
            return device
        now = device.power_instant_w()  # drivers before 530 do not report it
        return device.power_w() if isinstance(now, Absent) else now

    yield Quantity("cuda_power_instant_w", "W", power, "NVML", resolution=1e-3)


def thermal_figures(sampled: System, trials: Sequence[Trial]) -> Thermal:
    """Plain JSON: the contract's `energy.thermal`, from the sampler's figures."""
    rows = sampled["quantities"]
    series: dict[str, Series] = {}
    for name, sampled_row in rows.items():
        if name in _NAMES:
            # One line: of several cores the mean, of several sensors the hottest.
            join = fmean if sampled_row["unit"] == "Hz" else max
            readings = cast("list[float | list[float]]", sampled_row["values"])  # the sampler leaves none out
            values = [join(value) if isinstance(value, list) else value for value in readings]
            series[_NAMES[name]] = {"t_s": list(sampled_row["t_s"]), "values": values}
    # The share of the run in which each reason held; only reasons that mean it was held back.
    row = rows.get("cuda_throttled_share")
    if row is None:
        shares = None
    else:
        means = {name: found["mean"] for name, found in (row["by_label"] or {}).items() if name in HELD_BACK}
        shares = {name: mean for name, mean in means.items() if mean}
    return {
        "series": series,
        "temperature_c": _extent(series.get(TEMPERATURE)),
        "clock_hz": _extent(series.get(CLOCK)),
        "throttled": shares,
        "is_throttled": None if shares is None else any(share >= _MIN_THROTTLED_SHARE for share in shares.values()),
        "drift": drift(trials),
        "absent": dict(sampled["absent"]),
    }


def _extent(series: Series | None) -> Ends | None:
    if not series or not series["values"]:
        return None
    values = series["values"]
    return {"first": values[0], "last": values[-1], "min": min(values), "max": max(values)}


def drift(trials: Sequence[Trial]) -> dict[str, float | None] | None:
    """How a run's energy depends on the temperature: a line through the trials; None without a thermometer."""
    points = [(t.temperature_c, t.span.joules_each) for t in trials if t.temperature_c is not None]
    if len(points) < 2:
        return None
    degrees, joules = [point[0] for point in points], [point[1] for point in points]
    first_to_last = joules[-1] / joules[0] - 1 if joules[0] else None
    if max(degrees) == min(degrees):
        return {"joules_per_degree": None, "correlation": None, "first_to_last": first_to_last}
    slope = linear_regression(degrees, joules).slope
    related = correlation(degrees, joules) if max(joules) > min(joules) else 0.0
    return {"joules_per_degree": slope, "correlation": related, "first_to_last": first_to_last}
