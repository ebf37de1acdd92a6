"""This process: the cores it keeps busy, its memory, page faults and context switches; traffic of the whole machine."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterator
from time import process_time

import psutil

from torchgauge.measure.absence import Absent
from torchgauge.measure.readings import Quantity, Value

_SECTOR_BYTES = 512
_OWN = "the kernel's account of this process"


def quantities() -> Iterator[Quantity]:
    process = psutil.Process()
    yield Quantity("process_cores", "cores", process_time, _OWN, is_counter=True, resolution=1e-6)
    yield Quantity("rss_bytes", "B", lambda: float(process.memory_info().rss), _OWN, resolution=mmap.PAGESIZE)
    yield Quantity(
        "context_switches_per_s", "1/s", _context_switches, _OWN, is_counter=True,
        labels=("voluntary", "involuntary"), resolution=1,
    )  # fmt: skip
    yield Quantity(
        "page_faults_per_s", "1/s", _page_faults, _OWN, is_counter=True, labels=("minor", "major"), resolution=1
    )
    yield Quantity(
        "process_disk_bytes_per_s", "B/s", lambda: _transfers(process), _OWN, is_counter=True,
        labels=("read", "written"), resolution=_SECTOR_BYTES,
    )  # fmt: skip
    yield Quantity(
        "disk_bytes_per_s", "B/s", _disk, "the disks of the machine", is_counter=True,
        labels=("read", "written"), resolution=_SECTOR_BYTES,
    )  # fmt: skip
    yield Quantity(
        "network_bytes_per_s", "B/s", _network, "the network interfaces of the machine", is_counter=True,
        labels=("received", "sent"), resolution=1,
    )  # fmt: skip


# One call to the kernel gives both, for all threads; psutil reads files for the one and lacks the other.
if sys.platform == "win32":

    def _context_switches() -> Value | Absent:
        found = psutil.Process().num_ctx_switches()
        return float(found.voluntary), float(found.involuntary)

    def _page_faults() -> Value | Absent:
        return Absent("Windows does not distinguish minor and major page faults")

else:
    import resource

    def _context_switches() -> Value | Absent:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return float(usage.ru_nvcsw), float(usage.ru_nivcsw)

    def _page_faults() -> Value | Absent:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return float(usage.ru_minflt), float(usage.ru_majflt)


def _transfers(process: psutil.Process) -> Value | Absent:
    if not hasattr(process, "io_counters"):
        return Absent("this system does not count a process's disk traffic")
    found = process.io_counters()
    return float(found.read_bytes), float(found.write_bytes)


def _disk() -> Value | Absent:
    found = psutil.disk_io_counters(nowrap=False)
    if found is None:
        return Absent("the system shows no disk")
    return float(found.read_bytes), float(found.write_bytes)


def _network() -> Value | Absent:
    found = psutil.net_io_counters(nowrap=False)
    if found is None:
        return Absent("the system shows no network interface")
    return float(found.bytes_recv), float(found.bytes_sent)
