"""What machines can do: peak rates by device, the roofline, calibration; and the machine an analysis runs on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchgauge.hardware.calibration import peaks_of, remember, remembered
from torchgauge.hardware.devices import Peaks, known_devices, published_peaks
from torchgauge.hardware.roofline import Roof
from torchgauge.lazy import lazy_names

if TYPE_CHECKING:
    from torchgauge.hardware.calibration import FILE
    from torchgauge.hardware.environment import System, collect_environment, collect_system
    from torchgauge.hardware.machine import (
        Device,
        accelerator_name,
        allows_tf32,
        cpu_name,
        device_name,
        has_cuda,
        parse_cpuinfo,
        total_memory,
        usable_cores,
    )
    from torchgauge.hardware.roofline import COMPUTE, MEMORY

__all__ = [
    "COMPUTE", "FILE", "MEMORY", "Device", "Peaks", "Roof", "System", "accelerator_name", "allows_tf32",
    "collect_environment", "collect_system", "cpu_name", "device_name", "has_cuda", "known_devices", "parse_cpuinfo",
    "peaks_of", "published_peaks", "remember", "remembered", "total_memory", "usable_cores",
]  # fmt: skip

# Reports need the peaks alone; the rest loads psutil.
_HOMES = {
    "calibration": ("FILE",),
    "environment": ("System", "collect_environment", "collect_system"),
    "machine": (
        "Device", "accelerator_name", "allows_tf32", "cpu_name", "device_name", "has_cuda", "parse_cpuinfo",
        "total_memory", "usable_cores",
    ),
    "roofline": ("COMPUTE", "MEMORY"),
}  # fmt: skip
__getattr__ = lazy_names(__name__, _HOMES)
