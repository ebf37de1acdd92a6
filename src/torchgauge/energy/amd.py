"""AMD devices, through the `amdsmi` package that ROCm brings."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from torchgauge.energy.meter import JOULES, FunctionMeter, Meter, meters
from torchgauge.measure.absence import Absent

# AMD SMI documentation: the accumulator's resolution is given with it, 15.259 µJ on MI200 and MI300; it is kept by
# the firmware, which updates it about every millisecond.
_UPDATE_S = 1e-3
_RESOLUTION_J = 15.259e-6
_MICRO = 1e-6


@meters("amdsmi")
def amd_meters(device: str, stack: ExitStack, load: Callable[[], Any] | None = None) -> Iterator[Meter]:
    """torch calls AMD's devices cuda too; without ROCm's torch there is none."""
    import torch

    kind, _, index = device.partition(":")
    if kind == "cuda" and (torch.version.hip or load):
        ask = _asking(load or _load, int(index or 0), stack)
        yield FunctionMeter("AMD SMI energy counter", device, JOULES, _UPDATE_S, _RESOLUTION_J, ask)


def _load() -> Any:
    return importlib.import_module("amdsmi")


def _asking(load: Callable[[], Any], index: int, stack: ExitStack) -> Callable[[], float | Absent]:
    try:
        library = load()
    except (ImportError, OSError) as error:
        why = Absent(f"the package amdsmi, which ROCm brings, does not import: {error}")
        return lambda: why
    try:
        library.amdsmi_init()
        stack.callback(library.amdsmi_shut_down)
        handle = _handle(library, index)
    except library.AmdSmiException as error:
        refused = Absent(f"AMD SMI: {error}")
        return lambda: refused
    if isinstance(handle, Absent):
        return lambda: handle
    return lambda: _energy(library, handle)


def _handle(library: Any, index: int) -> Any:
    """The device at the same place on the bus as torch's: HIP_VISIBLE_DEVICES hides some from torch alone."""
    import torch

    found: Any = torch.cuda.get_device_properties(index)
    place = f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"
    for handle in library.amdsmi_get_processor_handles():
        if library.amdsmi_get_gpu_device_bdf(handle).lower() == place:
            return handle
    return Absent(f"AMD SMI knows no device at {place}")


def _energy(library: Any, handle: Any) -> float | Absent:
    try:
        found = library.amdsmi_get_energy_count(handle)
    except library.AmdSmiException as error:
        return Absent(f"AMD SMI: {error}")
    # Older releases call the accumulator `power`.
    counted = found["energy_accumulator"] if "energy_accumulator" in found else found["power"]
    return float(counted) * float(found["counter_resolution"]) * _MICRO
