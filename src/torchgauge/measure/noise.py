"""What else the machine did while a measurement ran."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Surroundings as SurroundingFigures

_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
# Other processes that take more than this share of the machine may slow the runs; measured when the machine is idle,
# the usual background work stays below it.
_LOUD_SHARE = 0.10


@dataclass(slots=True)
class Surroundings:
    """Shares are of all cores together, over the block."""

    others_share: float | None = None
    own_share: float | None = None
    load_average: float | None = None
    governor: str | None = None

    @property
    def is_loud(self) -> bool:
        return self.others_share is not None and self.others_share > _LOUD_SHARE

    def figures(self) -> SurroundingFigures:
        return {
            "other_processes_share": self.others_share,
            "own_share": self.own_share,
            "load_average": self.load_average,
            "governor": self.governor,
        }


@contextmanager
def surroundings_noted() -> Iterator[Surroundings]:
    """Fills in what it yields when the block ends."""
    noted = Surroundings(governor=governor())
    process = psutil.Process()
    begin, busy, own = perf_counter(), _busy_seconds(), _own_seconds(process)
    try:
        yield noted
    finally:
        capacity = (perf_counter() - begin) * (os.cpu_count() or 1)
        if capacity > 0:
            noted.own_share = (_own_seconds(process) - own) / capacity
            noted.others_share = max(0.0, (_busy_seconds() - busy) / capacity - noted.own_share)
        noted.load_average = psutil.getloadavg()[0]


def governor() -> str | None:
    try:
        return _GOVERNOR.read_text().strip()
    except OSError:
        return None


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))


def _own_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
