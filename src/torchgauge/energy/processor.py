"""Meters of the processor: its energy counters (RAPL, running average power limit), on Linux.

They are read through the kernel's powercap folder, or through perf's power events where that folder is not readable:
since 2020 only root may read it (CVE-2020-8694) by default. The packages of all sockets and
their memory, where it has a counter, are the processor's figure; cores are part of their package.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from torchgauge.energy.meter import JOULES, FunctionMeter, Meter, Unwrapped, meters
from torchgauge.measure.absence import Absent
from torchgauge.measure.perf_events import Event, Kernel, kernel

POWERCAP = Path("/sys/class/powercap")
# Intel SDM vol. 3B 15.10.3: the counters are updated about every millisecond.
_UPDATE_S = 1e-3
# The unit of the counter is 2^-14 J (61 µJ) on most parts; the kernel shows whole microjoules of it.
_RESOLUTION_J = 2.0**-14
_MICRO = 1e-6
PACKAGE, MEMORY, CORE = "package", "dram", "core"
DEVICES = Path("/sys/bus/event_source/devices")
# Packages and their memory; cores lie inside their package.
_EVENTS = ("energy-pkg", "energy-ram")


@meters("perf power")
def perf_meters(
    device: str, stack: ExitStack, folder: Path = DEVICES / "power", counting: Kernel | Absent | None = None
) -> Iterator[Meter]:
    if device == "cpu":
        kernel_ = kernel() if counting is None else counting
        events = power_events(folder)
        ask = _Energy(kernel_, events, stack)
        resolution = 0.0 if isinstance(events, Absent) else min(event.scale for event in events)
        yield FunctionMeter("perf power events", device, JOULES, _UPDATE_S, resolution, ask)


def power_events(folder: Path) -> list[Event] | Absent:
    """One event for every socket; `scale` makes joules of the counts."""
    if not (folder / "type").exists():
        return Absent("the kernel exposes no power events")
    try:
        kind = int(_text(folder / "type"))
        sockets = [int(part.partition("-")[0]) for part in _text(folder / "cpumask").split(",") if part]
        events = [
            Event(
                name,
                kind,
                int(_text(file).removeprefix("event="), 0),
                cpu,
                float(_text(folder / f"events/{name}.scale")),
            )
            for name in _EVENTS
            if (file := folder / "events" / name).exists()
            for cpu in sockets
        ]
        return events or Absent("the kernel's power events have no package")
    except (OSError, ValueError) as error:
        return Absent(f"the kernel's power events cannot be read: {error}")


def _text(path: Path) -> str:
    return path.read_text().strip()


class _Energy:
    """Opens the counters when first asked; the stack closes them."""

    def __init__(self, counting: Kernel | Absent, events: list[Event] | Absent, stack: ExitStack) -> None:
        self._kernel, self._events, self._stack = counting, events, stack
        self._counters: list[tuple[int, float]] | Absent | None = None

    def __call__(self) -> float | Absent:
        if self._counters is None:
            self._counters = self._open()
        if isinstance(self._counters, Absent) or isinstance(self._kernel, Absent):
            return self._counters if isinstance(self._counters, Absent) else Absent("no counters")
        try:
            return sum(self._kernel.read(counter).value * scale for counter, scale in self._counters)
        except OSError as error:
            return Absent(f"perf: {error}")

    def _open(self) -> list[tuple[int, float]] | Absent:
        if isinstance(self._kernel, Absent):
            return self._kernel
        if isinstance(self._events, Absent):
            return self._events
        opened = []
        for event in self._events:
            counter = self._kernel.open(event, -1)
            if counter is None or isinstance(counter, Absent):
                return counter or Absent("perf does not open its power events")
            self._stack.callback(self._kernel.close, counter)
            self._kernel.start(counter)
            opened.append((counter, event.scale))
        return opened


@dataclass(slots=True)
class Domain:
    """One counter of the folder, `name` as the kernel has it: package-0, core, uncore, dram, psys."""

    folder: Path
    name: str
    _counter: Unwrapped = field(default_factory=Unwrapped)

    @property
    def kind(self) -> str:
        return self.name.partition("-")[0]

    def energy_j(self) -> float | Absent:
        try:
            if self._counter.range_j is None:
                self._counter.range_j = _number(self.folder / "max_energy_range_uj") * _MICRO
            return self._counter.grown(_number(self.folder / "energy_uj") * _MICRO)
        except PermissionError:
            return Absent(f"{self.folder / 'energy_uj'} may be read by root only (sudo chmod a+r, until the next boot)")
        except (OSError, ValueError) as error:
            return Absent(f"{self.folder.name} cannot be read: {error}")


@meters("rapl")
def rapl_meters(device: str, stack: ExitStack, folder: Path = POWERCAP) -> Iterator[Meter]:
    """The processor as one meter, then a meter for each kind of domain, which covers only a part."""
    if device != "cpu":
        return
    domains = find_domains(folder)
    packages = [] if isinstance(domains, Absent) else [d for d in domains if d.kind in (PACKAGE, MEMORY)]
    if isinstance(domains, Absent) or not packages:
        why = domains if isinstance(domains, Absent) else Absent(f"no counter of a package in {folder}")
        yield FunctionMeter("RAPL", device, JOULES, _UPDATE_S, _RESOLUTION_J, lambda: why)
        return
    yield summed("RAPL", device, packages)
    for kind in dict.fromkeys(domain.kind for domain in domains):
        # Separate counters: reading one meter must not hide a turn from another.
        of_kind = [Domain(domain.folder, domain.name) for domain in domains if domain.kind == kind]
        yield summed(f"RAPL {kind}", f"{device} {kind}", of_kind)


def find_domains(folder: Path = POWERCAP) -> list[Domain] | Absent:
    if not folder.is_dir():
        where = "" if sys.platform == "linux" else ", which only Linux has"
        return Absent(f"{folder} does not exist{where}; virtual machines usually lack it")
    # intel-rapl-mmio:* are the same counters by another way.
    try:
        found = [Domain(path.parent, path.read_text().strip()) for path in sorted(folder.glob("intel-rapl:*/name"))]
    except OSError as error:
        return Absent(f"{folder} cannot be read: {error}")
    return found or Absent(f"{folder} has no intel-rapl entries")


def summed(name: str, covers: str, domains: Sequence[Domain]) -> FunctionMeter:
    def energy() -> float | Absent:
        total = 0.0
        for domain in domains:
            found = domain.energy_j()
            if isinstance(found, Absent):
                return found
            total += found
        return total

    return FunctionMeter(name, covers, JOULES, _UPDATE_S, _RESOLUTION_J, energy)


def _number(path: Path) -> int:
    return int(path.read_text())
