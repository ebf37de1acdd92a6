"""NVIDIA devices: the energy counter from Volta on, the power reading before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

from torchgauge.energy.meter import JOULES, WATTS, FunctionMeter, Meter, Unwrapped, meters
from torchgauge.measure.absence import Absent
from torchgauge.measure.nvml import Device
from torchgauge.measure.readings import nvml_device

# Measured on an H200: the counter changes every 100 ms, in steps of 1 mJ.
_COUNTER_S = 0.1
_COUNTER_J = 1e-3
# NVML API reference: the mean over 1 s from Ampere on; earlier parts update faster, never slower.
_POWER_S = 1.0
_POWER_W = 1e-3


@meters("nvml")
def nvml_meters(device: str, stack: ExitStack) -> Iterator[Meter]:
    kind, _, index = device.partition(":")
    if kind == "cuda":
        yield from of_device(stack.enter_context(nvml_device(int(index or 0))), device)


def of_device(found: Device | Absent, device: str) -> Iterator[Meter]:
    """`found` is the one device that the process uses; what others on the machine consume is not its."""
    unwrapped = Unwrapped()

    def energy() -> float | Absent:
        raw = found if isinstance(found, Absent) else found.energy_j()
        return raw if isinstance(raw, Absent) else unwrapped.grown(raw)

    def power() -> float | Absent:
        return found if isinstance(found, Absent) else found.power_w()

    yield _meter("NVML energy counter", device, JOULES, _COUNTER_S, _COUNTER_J, energy)
    yield _meter("NVML power", device, WATTS, _POWER_S, _POWER_W * _POWER_S, power)


def _meter(
    name: str, device: str, unit: str, period_s: float, resolution_j: float, ask: Callable[[], float | Absent]
) -> FunctionMeter:
    return FunctionMeter(name, device, unit, period_s, resolution_j, ask)
