"""Counters of the memory controllers, as the kernel describes them in sysfs: bytes moved, by the whole machine."""

from __future__ import annotations

import re
from pathlib import Path

from torchgauge.measure.absence import Absent
from torchgauge.measure.perf_events import Event

DEVICES = Path("/sys/bus/event_source/devices")
# By the names that Intel's server and client parts use.
_READ = ("cas_count_read", "data_reads", "data_read")
_WRITTEN = ("cas_count_write", "data_writes", "data_write")
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "64B": 64}


def memory_events(devices: Path = DEVICES) -> list[Event] | Absent:
    """Reads and writes of every controller; `scale` makes bytes of the counts."""
    controllers = sorted(devices.glob("uncore_imc*"))
    events = [
        event
        for controller in controllers
        for kind, names in (("memory_read_bytes", _READ), ("memory_written_bytes", _WRITTEN))
        for event in _events(controller, kind, names)
    ]
    return events or Absent("the kernel shows no counters of the memory controllers")


def _events(controller: Path, kind: str, names: tuple[str, ...]) -> list[Event]:
    name = next((name for name in names if (controller / "events" / name).exists()), None)
    if name is None:
        return []
    config = _config(_text(controller / "events" / name), controller / "format")
    unit = _UNITS.get(_text(controller / "events" / f"{name}.unit"))
    if config is None or unit is None:
        return []
    scale = float(_text(controller / "events" / f"{name}.scale") or 1) * unit
    number = int(_text(controller / "type"))
    # `0,32`: one processor for every socket.
    return [
        Event(kind, number, config, cpu, scale)
        for cpu in [int(part.partition("-")[0]) for part in _text(controller / "cpumask").split(",") if part]
    ]


def _text(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def _config(terms: str, formats: Path) -> int | None:
    """`event=0x04,umask=0x03` by the bits that the format files give each term; None where they lie elsewhere."""
    config = 0
    for term in terms.split(","):
        name, _, value = term.partition("=")
        place = re.fullmatch(r"config:(\d+)(?:-\d+)?", _text(formats / name))
        if place is None:
            return None
        config |= int(value or "1", 0) << int(place[1])
    return config
