"""The machine and the versions an analysis runs on."""

from __future__ import annotations

from torchgauge.environment.collecting import System, collect_environment, collect_system
from torchgauge.environment.devices import Device, allows_tf32, device_name, has_cuda
from torchgauge.environment.machine import cpu_name, parse_cpuinfo, total_memory, usable_cores

__all__ = [
    "Device",
    "System",
    "allows_tf32",
    "collect_environment",
    "collect_system",
    "cpu_name",
    "device_name",
    "has_cuda",
    "parse_cpuinfo",
    "total_memory",
    "usable_cores",
]
