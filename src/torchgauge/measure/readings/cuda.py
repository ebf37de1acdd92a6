"""A CUDA device, through NVML."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torchgauge.measure.absence import Absent
from torchgauge.measure.nvml import THROTTLE_REASONS, Device, opened
from torchgauge.measure.readings import Quantity, Value

_NVML = "NVML"
# NVML API reference: utilisation is taken over 1/6 s to 1 s, by product; power over 1 s from Ampere on.
_UTILIZATION_S = 1 / 6
_POWER_S = 1.0
_NAMES = tuple(THROTTLE_REASONS.values())


def quantities(device: Device | Absent) -> Iterator[Quantity]:
    def reading(read: Callable[[Device], Value | Absent]) -> Callable[[], Value | Absent]:
        return lambda: device if isinstance(device, Absent) else read(device)

    def quantity(
        name: str, unit: str, read: Callable[[Device], Value | Absent], resolution: float, update_s: float | None = None
    ) -> Quantity:
        return Quantity(name, unit, reading(read), _NVML, resolution=resolution, update_s=update_s)

    yield quantity("cuda_share", "share", Device.busy_share, 0.01, _UTILIZATION_S)
    yield quantity("cuda_memory_share", "share", Device.memory_busy_share, 0.01, _UTILIZATION_S)
    yield quantity("cuda_memory_used_bytes", "B", Device.memory_used_bytes, 1)
    yield quantity("cuda_sm_clock_hz", "Hz", Device.sm_clock_hz, 1e6)
    yield quantity("cuda_memory_clock_hz", "Hz", Device.memory_clock_hz, 1e6)
    yield quantity("cuda_temperature_c", "°C", Device.temperature_c, 1)
    yield quantity("cuda_power_w", "W", Device.power_w, 1e-3, _POWER_S)

    def throttled(device: Device) -> Value | Absent:
        """1 for every reason in force: the mean over a run is the share of the time."""
        found = device.throttle_reasons()
        return found if isinstance(found, Absent) else tuple(float(name in found) for name in _NAMES)

    yield Quantity("cuda_throttled_share", "share", reading(throttled), _NVML, labels=_NAMES, resolution=1)


def nvml_device(index: int) -> AbstractContextManager[Device | Absent]:
    """torch's device of this number, whatever CUDA_VISIBLE_DEVICES hides."""
    import torch

    if torch.version.hip:
        return nullcontext(Absent("NVML knows NVIDIA's devices only"))
    if index >= torch.cuda.device_count():
        return nullcontext(Absent("torch sees no CUDA device here"))
    found: Any = torch.cuda.get_device_properties(index)
    # On the bus, as NVML writes it; empty if torch does not expose it.
    if not hasattr(found, "pci_bus_id"):
        place = ""
    else:
        place = f"{found.pci_domain_id:08x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"
    return opened(str(found.uuid).removeprefix("GPU-"), place)
