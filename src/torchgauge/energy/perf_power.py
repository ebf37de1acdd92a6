"""The processor's energy counters through perf's power events, where powercap's files are not readable (Linux)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from torchgauge.energy.meter import JOULES, FunctionMeter, Meter, meters
from torchgauge.measure.absence import Absent
from torchgauge.measure.perf_events import Event, Kernel, kernel

DEVICES = Path("/sys/bus/event_source/devices")
# Packages and their memory; cores lie inside their package.
_EVENTS = ("energy-pkg", "energy-ram")
_UPDATE_S = 1e-3


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
        return Absent("the kernel shows no power events")
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
