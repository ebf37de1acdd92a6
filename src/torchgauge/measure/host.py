"""The host's part of a run on a device: how long a call takes to return, its work still under way."""

from __future__ import annotations

from statistics import median
from time import perf_counter

from torchgauge.measure.latency import Clock
from torchgauge.measure.subject import Subject


class HostWatch:
    """Runs of its own between the undisturbed ones. Where the device is far behind, its queue is full and the host
    waits for it: then this is near the whole, and no shorter kernel is held up by it."""

    def __init__(self, subject: Subject, clock: Clock = perf_counter) -> None:
        self._subject, self._clock = subject, clock
        self._seconds: list[float] = []

    def run(self) -> None:
        self._subject.synchronize()
        begin = self._clock()
        self._subject()
        self._seconds.append(self._clock() - begin)
        self._subject.synchronize()

    @property
    def median_s(self) -> float | None:
        return median(self._seconds) if self._seconds else None
