"""A meter of watts made one of joules: what it shows, summed over time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torchgauge.energy.meter import JOULES, Meter, Reading
from torchgauge.measure.absence import Absent


class Integrated:
    """Counts at every reading: between two of them the power is taken to go straight from one to the other."""

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
    """The meter itself where it counts joules; else integrated by a thread, since a run may outlast its updates."""
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
