"""The meter interface, the registry, and the meter of a device.

A meter counts joules (a counter that only grows) or shows watts, which are then summed over time. A meter that is not
available says why.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Protocol, TypeVar

from torchgauge.measure.absence import Absent, Instrument
from torchgauge.registry import Registry

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Meter as MeterRow

Clock = Callable[[], float]

JOULES, WATTS = "J", "W"
# The boundary of a meter that does not measure one of torch's devices.
MACHINE = "machine"


@dataclass(frozen=True, slots=True)
class Reading:
    """`value` is in the meter's unit: joules since some start that never changes, or watts now."""

    value: float
    at_s: float


class Meter(Protocol):
    """`covers` is the device it measures ("cuda:0", "cpu", "machine"); `resolution_j` is its smallest step: for a power
    meter, its smallest power over one update."""

    @property
    def name(self) -> str: ...
    @property
    def covers(self) -> str: ...
    @property
    def unit(self) -> str: ...
    @property
    def update_period_s(self) -> float: ...
    @property
    def resolution_j(self) -> float: ...

    def available(self) -> str | None:
        """None if it can be read, otherwise the reason why not."""
        ...

    def read(self) -> Reading | Absent: ...


# Yields the meters of a device, including absent ones; their resources are closed by the stack.
Finder = Callable[[str, ExitStack], Iterable[Meter]]

# The functions that find the meters of each kind.
FINDERS: Registry[str, Finder] = Registry("kind of meter")
F = TypeVar("F", bound=Finder)


def meters(name: str) -> Callable[[F], F]:
    """Register the function that finds the meters of a kind; it may have more parameters than a `Finder`."""

    def register(find: F) -> F:
        FINDERS.insert(name, find)
        return find

    return register


@contextmanager
def meters_of(device: str) -> Iterator[list[Meter]]:
    """All meters of a torch device ("cuda:1", "cpu"); open while the block runs."""
    # Each registers its own.
    from torchgauge.energy import apple, battery, gpu, processor  # noqa: F401

    with ExitStack() as stack:
        yield [meter for find in FINDERS.values() for meter in find(device, stack)]


def choose(found: Sequence[Meter], device: str) -> Meter | Absent:
    """The meter of this device alone, otherwise of the whole machine; counters are preferred to power readings."""
    for boundary in (device, MACHINE):
        for meter in sorted(found, key=lambda meter: meter.unit != JOULES):
            if meter.covers == boundary and meter.available() is None:
                return meter
    reasons = [f"{meter.name}: {meter.available()}" for meter in found if meter.covers in (device, MACHINE)]
    return Absent("; ".join(reasons) or f"no meter for '{device}'")


def describe_meter(meter: Meter) -> MeterRow:
    """Its resolution, or why it cannot be read here: plain JSON."""
    reason = meter.available()
    return {
        "name": meter.name,
        "covers": meter.covers,
        "unit": meter.unit,
        "available": reason is None,
        "reason": reason,
        "update_period_s": meter.update_period_s,
        "resolution_j": meter.resolution_j,
    }


@dataclass(slots=True)
class FunctionMeter:
    """A meter from a function that reads it."""

    name: str
    covers: str
    unit: str
    update_period_s: float
    resolution_j: float
    ask: Callable[[], float | Absent]
    clock: Clock = perf_counter

    def available(self) -> str | None:
        found = self.ask()
        return found.reason if isinstance(found, Absent) else None

    def read(self) -> Reading | Absent:
        found = self.ask()
        return found if isinstance(found, Absent) else Reading(found, self.clock())


@dataclass(slots=True)
class Unwrapped:
    """Turns a counter that wraps to 0 after `range_j` into one that only grows. It must be read more than once per
    wrap. Without a range it never wraps: if it falls, it was reset."""

    range_j: float | None = None
    _last: float | None = None
    _turned_j: float = 0.0

    def grown(self, raw_j: float) -> float | Absent:
        if self._last is not None and raw_j < self._last:
            if self.range_j is None:
                return Absent("the counter fell: it was reset")
            self._turned_j += self.range_j
        self._last = raw_j
        return self._turned_j + raw_j


def list_meters(devices: Iterable[str]) -> list[Instrument]:
    """The meters of these devices as rows of `torchgauge system`; a meter of the whole machine is listed once."""
    rows: dict[tuple[str, str], Instrument] = {}
    for device in devices:
        with meters_of(device) as found:
            for meter in found:
                row = describe_meter(meter)
                shown: Instrument = {
                    "name": row["name"],
                    "device": row["covers"],
                    "available": row["available"],
                    "reason": row["reason"],
                    "update_period_s": row["update_period_s"],
                    "resolution": row["resolution_j"],
                    "resolution_unit": "J",
                    "unit": row["unit"],
                }
                rows.setdefault((row["name"], row["covers"]), shown)
    return list(rows.values())


class Integrated:
    """Adds up energy at every reading, with the power interpolated linearly between readings."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self.name, self.covers, self.unit = meter.name, meter.covers, JOULES
        self.update_period_s, self.resolution_j = meter.update_period_s, meter.resolution_j
        self._joules = 0.0
        self._last: Reading | None = None
        self._lock = threading.Lock()

    def available(self) -> str | None:
        return self._meter.available()

    def read(self) -> Reading | Absent:
        with self._lock:
            now = self._meter.read()
            if isinstance(now, Absent):
                return now
            if self._last is not None:
                self._joules += (self._last.value + now.value) / 2 * (now.at_s - self._last.at_s)
            self._last = now
            return Reading(self._joules, now.at_s)


@contextmanager
def counting(meter: Meter) -> Iterator[Meter]:
    """The meter itself if it counts joules; otherwise integrated by a thread, because a run may span several
    updates."""
    if meter.unit == JOULES:
        yield meter
        return
    integrated, stop = Integrated(meter), threading.Event()

    def follow() -> None:
        while not stop.wait(meter.update_period_s):
            integrated.read()

    thread = threading.Thread(target=follow, name="torchgauge meter", daemon=True)
    thread.start()
    try:
        yield integrated
    finally:
        stop.set()
        thread.join()
