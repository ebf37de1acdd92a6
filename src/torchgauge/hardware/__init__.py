"""Peak rates by device, the roofline, calibration, and the machine that an analysis runs on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchgauge.registry import lazy_names

if TYPE_CHECKING:
    from torchgauge.hardware.devices import *
    from torchgauge.hardware.machine import *

_HOMES = {
    "devices": (
        "COMPUTE", "FILE", "MEMORY", "Listed", "Pace", "Peaks", "Roof", "known_devices", "listed_devices",
        "peaks_of", "published_peaks", "remember", "remembered",
    ),
    "machine": (
        "Device", "System", "accelerator_name", "allows_tf32", "collect_environment", "collect_system", "cpu_name",
        "device_name", "has_cuda", "parse_cpuinfo", "total_memory", "usable_cores",
    ),
}  # fmt: skip
__getattr__ = lazy_names(__name__, _HOMES)
