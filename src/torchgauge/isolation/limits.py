"""Limits on the memory and time for reading a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torchgauge.errors import UsageError
from torchgauge.units import format_bytes, parse_bytes

LEAST_MEMORY_BYTES = 2 << 30
DEFAULT_TIME_S = 300.0
# The time of a scan grows with the file. This is far below the speed of a slow disk.
SCANNED_BYTES_PER_S = 20e6


@dataclass(frozen=True, slots=True)
class Limits:
    """`memory_bytes`: growth of resident memory since the process began to read."""

    memory_bytes: int
    time_s: float

    def describe(self, exceeded: str) -> str:
        if exceeded == "memory":
            return f"needs more than {format_bytes(self.memory_bytes)} of memory; allow more with --memory-limit"
        return f"takes longer than {self.time_s:g} s; allow more with --time-limit"


def limits_for(
    paths: Sequence[str | os.PathLike[str]], memory_limit: int | str | None, time_limit: float | None
) -> Limits:
    """By default the larger of 2 GiB and twice the files' size, and 300 s plus the time to stream the weights."""
    size = 0
    for path in paths:
        place = Path(path)
        with suppress(OSError):  # reading it will raise a clear error
            files = place.rglob("*") if place.is_dir() else [place]
            size += sum(file.stat().st_size for file in files if file.is_file())
    memory = max(LEAST_MEMORY_BYTES, 2 * size)
    if memory_limit is not None:
        try:
            memory = int(parse_bytes(memory_limit)) if isinstance(memory_limit, str) else int(memory_limit)
        except (ValueError, OverflowError):
            memory = 0
        if memory <= 0:
            raise UsageError(f"'{memory_limit}' is not a memory limit; write a size such as 4GiB or 500MB")
    if time_limit is not None and not time_limit > 0:
        raise UsageError(f"a time limit must be a positive number of seconds, not {time_limit}")
    return Limits(memory, DEFAULT_TIME_S + size / SCANNED_BYTES_PER_S if time_limit is None else float(time_limit))


def limit_own_resources(limits: Limits) -> None:
    """The kernel's limits (core dumps, CPU time, allocation), in addition to those that the parent watches."""
    if sys.platform == "win32":
        return
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    seconds = int(limits.time_s * (os.cpu_count() or 1)) + 2
    _lower(resource.RLIMIT_CPU, seconds)
    if sys.platform == "linux":
        # Writable private memory, used or only reserved; twice the limit leaves room for reservations.
        status = Path("/proc/self/status").read_text().splitlines()
        held = next((int(line.split()[1]) << 10 for line in status if line.startswith("VmData:")), 0)
        _lower(resource.RLIMIT_DATA, held + 2 * limits.memory_bytes + (1 << 30))


def _lower(kind: int, value: int) -> None:
    import resource

    hard = resource.getrlimit(kind)[1]
    lowered = value if hard == resource.RLIM_INFINITY else min(value, hard)
    # At the hard limit the kernel kills immediately, without the signal that identifies the reason.
    resource.setrlimit(kind, (lowered, hard if kind == resource.RLIMIT_CPU else lowered))
