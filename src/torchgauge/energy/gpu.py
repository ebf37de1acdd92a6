"""Meters of GPUs: NVIDIA's energy counter (from Volta on) and power reading through NVML, AMD's energy counter through
the `amdsmi` package that is part of ROCm."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

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
        yield from nvml_device_meters(stack.enter_context(nvml_device(int(index or 0))), device)


def nvml_device_meters(found: Device | Absent, device: str) -> Iterator[Meter]:
    """Meters of the one device that the process uses."""
    unwrapped = Unwrapped()

    def energy() -> float | Absent:
        raw = found if isinstance(found, Absent) else found.energy_j()
        return raw if isinstance(raw, Absent) else unwrapped.grown(raw)

    def power() -> float | Absent:
        return found if isinstance(found, Absent) else found.power_w()

    yield FunctionMeter("NVML energy counter", device, JOULES, _COUNTER_S, _COUNTER_J, energy)
    yield FunctionMeter("NVML power", device, WATTS, _POWER_S, _POWER_W * _POWER_S, power)


# AMD SMI documentation: the accumulator's resolution is given with it, 15.259 µJ on MI200 and MI300; it is kept by
# the firmware, which updates it about every millisecond.
_AMD_UPDATE_S = 1e-3
_AMD_RESOLUTION_J = 15.259e-6
_MICRO = 1e-6


@meters("amdsmi")
def amd_meters(device: str, stack: ExitStack, load: Callable[[], Any] | None = None) -> Iterator[Meter]:
    """torch calls AMD's devices cuda too, in its ROCm builds only."""
    import torch

    kind, _, index = device.partition(":")
    if kind == "cuda" and (torch.version.hip or load):
        ask = _asking(load or (lambda: importlib.import_module("amdsmi")), int(index or 0), stack)
        yield FunctionMeter("AMD SMI energy counter", device, JOULES, _AMD_UPDATE_S, _AMD_RESOLUTION_J, ask)


def _asking(load: Callable[[], Any], index: int, stack: ExitStack) -> Callable[[], float | Absent]:
    try:
        library = load()
    except (ImportError, OSError) as error:
        why = Absent(f"the package amdsmi, which is part of ROCm, cannot be imported: {error}")
        return lambda: why
    import torch

    try:
        library.amdsmi_init()
        stack.callback(library.amdsmi_shut_down)
        # The device at the same place on the bus as torch's: HIP_VISIBLE_DEVICES hides some from torch alone.
        found: Any = torch.cuda.get_device_properties(index)
        place = f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"
        handles = library.amdsmi_get_processor_handles()
        at_place = [each for each in handles if library.amdsmi_get_gpu_device_bdf(each).lower() == place]
    except library.AmdSmiException as error:
        refused = Absent(f"AMD SMI: {error}")
        return lambda: refused
    if not at_place:
        return lambda: Absent(f"AMD SMI lists no device at {place}")

    def joules() -> float | Absent:
        try:
            found = library.amdsmi_get_energy_count(at_place[0])
        except library.AmdSmiException as error:
            return Absent(f"AMD SMI: {error}")
        # Older releases call the accumulator `power`.
        counted = found["energy_accumulator"] if "energy_accumulator" in found else found["power"]
        return float(counted) * float(found["counter_resolution"]) * _MICRO

    return joules
