"""Quantities for the sampler: of a CUDA device, the processor, this process, the traffic of the machine.

A quantity can be read again and again; one that cannot says why.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import psutil

from torchgauge.measure.absence import Absent, Instrument
from torchgauge.measure.latency import busy_seconds
from torchgauge.measure.nvml import THROTTLE_REASONS, Device, opened

# The unit of a counter, by the unit of its rate.
_COUNTED_IN = {"share": "s", "cores": "s", "1/s": "", "B/s": "B"}
# One number, or one for every label.
Value = float | tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Quantity:
    """`read` returns the current value; a counter, which only grows, is shown as a rate.

    The name ends with the unit that is shown. `update_s` is the update period of the source, `resolution` its smallest
    step, in the unit that is read; None if unknown.
    """

    name: str
    unit: str
    read: Callable[[], Value | Absent]
    source: str
    is_counter: bool = False
    labels: tuple[str, ...] = ()
    is_averaged: bool = False  # the mean over the labels means something
    update_s: float | None = None
    resolution: float | None = None

    def now(self) -> Value | Absent:
        try:
            return self.read()
        # psutil raises these if the system does not report the value, or does not permit reading it.
        except (OSError, NotImplementedError, psutil.Error) as error:
            return Absent(f"{self.source}: {error}" if str(error) else f"{self.source} reports no value")

    def describe(self) -> Instrument:
        """Its resolution, or why it cannot be read here."""
        now = self.now()
        return {
            "name": self.name,
            "unit": self.unit,
            "source": self.source,
            "available": not isinstance(now, Absent),
            "reason": now.reason if isinstance(now, Absent) else None,
            "update_period_s": self.update_s,
            "resolution": self.resolution,
            "resolution_unit": _COUNTED_IN[self.unit] if self.is_counter else self.unit,
        }


# NVML API reference: utilisation is taken over 1/6 s to 1 s, by product; power over 1 s from Ampere on.
_UTILIZATION_S = 1 / 6
_POWER_S = 1.0


def cuda_quantities(device: Device | Absent) -> Iterator[Quantity]:
    def reading(read: Callable[[Device], Value | Absent]) -> Callable[[], Value | Absent]:
        return lambda: device if isinstance(device, Absent) else read(device)

    def quantity(
        name: str, unit: str, read: Callable[[Device], Value | Absent], resolution: float, update_s: float | None = None
    ) -> Quantity:
        return Quantity(name, unit, reading(read), "NVML", resolution=resolution, update_s=update_s)

    yield quantity("cuda_share", "share", Device.busy_share, 0.01, _UTILIZATION_S)
    yield quantity("cuda_memory_share", "share", Device.memory_busy_share, 0.01, _UTILIZATION_S)
    yield quantity("cuda_memory_used_bytes", "B", Device.memory_used_bytes, 1)
    yield quantity("cuda_sm_clock_hz", "Hz", Device.sm_clock_hz, 1e6)
    yield quantity("cuda_memory_clock_hz", "Hz", Device.memory_clock_hz, 1e6)
    yield quantity("cuda_temperature_c", "°C", Device.temperature_c, 1)
    yield quantity("cuda_power_w", "W", Device.power_w, 1e-3, _POWER_S)
    reasons = tuple(THROTTLE_REASONS.values())

    def throttled(device: Device) -> Value | Absent:
        """1 for every reason in force: the mean over a run is the share of the time."""
        found = device.throttle_reasons()
        return found if isinstance(found, Absent) else tuple(float(name in found) for name in reasons)

    yield Quantity("cuda_throttled_share", "share", reading(throttled), "NVML", labels=reasons, resolution=1)


def nvml_device(index: int) -> AbstractContextManager[Device | Absent]:
    """torch's device of this number, whatever CUDA_VISIBLE_DEVICES hides."""
    import torch

    if torch.version.hip:
        return nullcontext(Absent("NVML supports NVIDIA's devices only"))
    if index >= torch.cuda.device_count():
        return nullcontext(Absent("torch sees no CUDA device here"))
    found: Any = torch.cuda.get_device_properties(index)
    # On the bus, as NVML writes it; empty if torch does not expose it.
    if not hasattr(found, "pci_bus_id"):
        place = ""
    else:
        place = f"{found.pci_domain_id:08x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"
    return opened(str(found.uuid).removeprefix("GPU-"), place)


_SCALING = Path("/sys/devices/system/cpu/cpu0/cpufreq")
# Sensors are read over slow buses; they do not change faster than this.
_TEMPERATURE_S = 1.0


def processor_quantities() -> Iterator[Quantity]:
    """How busy, how fast and how hot the cores are."""
    cores = tuple(f"cpu{index}" for index in range(psutil.cpu_count() or 1))
    # The kernel charges CPU time in ticks.
    tick = 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else None

    yield Quantity(
        "cpu_share", "share", lambda: tuple(map(busy_seconds, psutil.cpu_times(percpu=True))), "the system's CPU times",
        is_counter=True, labels=cores, is_averaged=True, update_s=tick, resolution=tick,
    )  # fmt: skip

    def frequencies() -> Value | Absent:
        found = psutil.cpu_freq(percpu=True) if hasattr(psutil, "cpu_freq") else []
        if not found:
            return Absent("the system does not report the clock of its cores")
        clocks = [core.current * 1e6 for core in found]  # psutil gives MHz
        # Some systems report one figure for all cores.
        return tuple(clocks if len(clocks) == len(cores) else clocks[:1] * len(cores))

    if _SCALING.exists() or not Path("/proc/cpuinfo").exists():
        source = "the system's clock scaling"
    else:
        source = "/proc/cpuinfo, which in a virtual machine is the nominal clock"
    yield Quantity("cpu_frequency_hz", "Hz", frequencies, source, labels=cores, is_averaged=True, resolution=1e3)

    def sensors() -> dict[str, float]:
        chips = psutil.sensors_temperatures() if hasattr(psutil, "sensors_temperatures") else {}
        return {
            f"{chip} {sensor.label or index}".strip(): float(sensor.current)
            for chip, found in chips.items()
            for index, sensor in enumerate(found)
        }

    def temperatures() -> Value | Absent:
        return tuple(sensors().values()) or Absent("the system reports no temperature sensor")

    source, labels = "the system's sensors", tuple(sensors())
    yield Quantity("temperature_c", "°C", temperatures, source, labels=labels, update_s=_TEMPERATURE_S)


_SECTOR_BYTES = 512

# One system call returns both, for all threads; psutil reads files for context switches and lacks page faults.
if sys.platform == "win32":

    def _context_switches() -> Value | Absent:
        found = psutil.Process().num_ctx_switches()
        return float(found.voluntary), float(found.involuntary)

    def page_faults() -> tuple[float, float] | Absent:
        """Minor and major ones of this process since it began."""
        return Absent("Windows does not distinguish minor and major page faults")

else:
    import resource

    def _context_switches() -> Value | Absent:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return float(usage.ru_nvcsw), float(usage.ru_nivcsw)

    def page_faults() -> tuple[float, float] | Absent:
        """Minor and major ones of this process since it began."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return float(usage.ru_minflt), float(usage.ru_majflt)


def process_quantities() -> Iterator[Quantity]:
    """The cores that this process keeps busy, its memory, page faults and context switches; traffic of the machine."""
    process = psutil.Process()
    own = partial(Quantity, source="the kernel's account of this process")
    yield own("process_cores", "cores", process_time, is_counter=True, resolution=1e-6)
    yield own("rss_bytes", "B", lambda: float(process.memory_info().rss), resolution=mmap.PAGESIZE)
    labels: tuple[str, ...] = ("voluntary", "involuntary")
    yield own("context_switches_per_s", "1/s", _context_switches, is_counter=True, labels=labels, resolution=1)
    yield own("page_faults_per_s", "1/s", page_faults, is_counter=True, labels=("minor", "major"), resolution=1)

    def transfers() -> Value | Absent:
        if not hasattr(process, "io_counters"):
            return Absent("this system does not count a process's disk traffic")
        found = process.io_counters()
        return float(found.read_bytes), float(found.write_bytes)

    def disk() -> Value | Absent:
        found = psutil.disk_io_counters(nowrap=False)
        return (float(found.read_bytes), float(found.write_bytes)) if found else Absent("the system reports no disk")

    def network() -> Value | Absent:
        found = psutil.net_io_counters(nowrap=False)
        if found is None:
            return Absent("the system reports no network interface")
        return float(found.bytes_recv), float(found.bytes_sent)

    traffic = partial(Quantity, unit="B/s", is_counter=True)
    labels = ("read", "written")
    yield traffic(
        "process_disk_bytes_per_s", read=transfers, source="the kernel's account of this process", labels=labels,
        resolution=_SECTOR_BYTES,
    )  # fmt: skip
    yield traffic(
        "disk_bytes_per_s", read=disk, source="the disks of the machine", labels=labels, resolution=_SECTOR_BYTES
    )
    yield traffic(
        "network_bytes_per_s", read=network, source="the network interfaces of the machine",
        labels=("received", "sent"), resolution=1,
    )  # fmt: skip
