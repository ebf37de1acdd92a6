"""Traffic of the whole machine: disks and network."""

from __future__ import annotations

from collections.abc import Iterator

import psutil

from torchgauge.measure.absence import Absent
from torchgauge.measure.readings.quantity import Quantity, Value

_SECTOR_BYTES = 512


def quantities() -> Iterator[Quantity]:
    yield Quantity(
        "disk_bytes_per_s", "B/s", _disk, "the disks of the machine", is_counter=True,
        labels=("read", "written"), resolution=_SECTOR_BYTES,
    )  # fmt: skip
    yield Quantity(
        "network_bytes_per_s", "B/s", _network, "the network interfaces of the machine", is_counter=True,
        labels=("received", "sent"), resolution=1,
    )  # fmt: skip


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
