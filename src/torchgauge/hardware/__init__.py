"""Peak rates by device, the roofline, calibration, and the machine that an analysis runs on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchgauge.hardware.devices import (
    Pace,
    Peaks,
    Roof,
    known_devices,
    peaks_of,
    published_peaks,
    remember,
    remembered,
)
from torchgauge.registry import lazy_names

if TYPE_CHECKING:
    from torchgauge.hardware.devices import COMPUTE, FILE, MEMORY
    from torchgauge.hardware.machine import (
        Device,
        System,
        accelerator_name,
        allows_tf32,
        collect_environment,
        collect_system,
        cpu_name,
        device_name,
        has_cuda,
        parse_cpuinfo,
        total_memory,
        usable_cores,
    )

__all__ = [
    "COMPUTE", "FILE", "MEMORY", "Device", "Pace", "Peaks", "Roof", "System", "accelerator_name", "allows_tf32",
    "collect_environment", "collect_system", "cpu_name", "device_name", "has_cuda", "known_devices", "parse_cpuinfo",
    "peaks_of", "published_peaks", "remember", "remembered", "total_memory", "usable_cores",
]  # fmt: skip

# Reports need the peaks alone; the rest loads psutil.
_HOMES = {
    "devices": ("COMPUTE", "FILE", "MEMORY"),
    "machine": (
        "Device", "System", "accelerator_name", "allows_tf32", "collect_environment", "collect_system", "cpu_name",
        "device_name", "has_cuda", "parse_cpuinfo", "total_memory", "usable_cores",
    ),
}  # fmt: skip
__getattr__ = lazy_names(__name__, _HOMES)
