"""The processor: how busy, how fast and how hot its cores are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil

from torchgauge.measure.absence import Absent
from torchgauge.measure.readings import Quantity, Value

_SCALING = Path("/sys/devices/system/cpu/cpu0/cpufreq")
_MHZ = 1e6
# Sensors are read over slow buses; they do not change faster than this.
_TEMPERATURE_S = 1.0


def quantities() -> Iterator[Quantity]:
    cores = tuple(f"cpu{index}" for index in range(psutil.cpu_count() or 1))
    tick = tick_s()
    yield Quantity(
        "cpu_share", "share", _busy_seconds, "the system's CPU times", is_counter=True, labels=cores,
        is_averaged=True, update_s=tick, resolution=tick,
    )  # fmt: skip
    if _SCALING.exists() or not Path("/proc/cpuinfo").exists():
        frequency_source = "the system's clock scaling"
    else:
        frequency_source = "/proc/cpuinfo, which in a virtual machine is the nominal clock"
    yield Quantity(
        "cpu_frequency_hz", "Hz", _frequencies, frequency_source, labels=cores, is_averaged=True, resolution=1e3
    )
    yield Quantity(
        "temperature_c", "°C", _temperatures, "the system's sensors", labels=tuple(_sensors()), update_s=_TEMPERATURE_S
    )


def tick_s() -> float | None:
    """The kernel charges CPU time in ticks."""
    return 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else None


def _busy_seconds() -> Value:
    return tuple(
        float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))
        for times in psutil.cpu_times(percpu=True)
    )


def _frequencies() -> Value | Absent:
    found = psutil.cpu_freq(percpu=True) if hasattr(psutil, "cpu_freq") else []
    if not found:
        return Absent("the system does not report the clock of its cores")
    # Some systems report one figure for all cores.
    clocks = [core.current * _MHZ for core in found]
    cores = psutil.cpu_count() or 1
    return tuple(clocks if len(clocks) == cores else clocks[:1] * cores)


def _temperatures() -> Value | Absent:
    found = _sensors()
    return tuple(found.values()) if found else Absent("the system shows no temperature sensor")


def _sensors() -> dict[str, float]:
    if not hasattr(psutil, "sensors_temperatures"):
        return {}
    chips = psutil.sensors_temperatures()
    return {
        f"{chip} {sensor.label or index}".strip(): float(sensor.current)
        for chip, sensors in chips.items()
        for index, sensor in enumerate(sensors)
    }
