"""Limits on the memory and time for reading a file."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from torchgauge.errors import UsageError
from torchgauge.units import format_bytes, parse_bytes

LEAST_MEMORY_BYTES = 2 << 30
# What a report takes in the parent. A tensor takes at least 60 bytes in a file, and 14 KB with all its statistics.
RESULT_BYTES = 512 << 20
RESULT_BYTES_PER_BYTE = 250
# More would push everything else out of memory: files larger than this are streamed.
LARGEST_SHARE_OF_MEMORY = 0.75
DEFAULT_TIME_S = 300.0
# The time of a scan grows with the file. This is far below the speed of a slow disk.
SCANNED_BYTES_PER_S = 20e6
# 860 GB at this speed, and 8 TB at that of an ordinary disk.
LONGEST_TIME_S = 12 * 3600.0
# A captured reader may ignore the signal at the limit of CPU time; so much later it is killed.
_CPU_GRACE_S = 5
# Open files take the kernel's memory, which counts nowhere. Shards of a checkpoint are opened one after the other.
_MOST_OPEN_FILES = 4096
# The kernel's share of a thread: its stack of 16 KiB and what describes it.
_THREAD_BYTES = 32 << 10
_HELD = re.compile(rb"^(VmRSS|VmSwap|VmPTE|HugetlbPages|Threads):\s+(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Limits:
    """`memory_bytes`: growth of resident memory since the process began to read. `result_bytes`: memory that its result
    may take in the parent, by default as much."""

    memory_bytes: int
    time_s: float
    result_bytes: int = field(default=sys.maxsize, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "result_bytes", min(self.result_bytes, self.memory_bytes))

    def describe(self, exceeded: str) -> str:
        if exceeded == "memory":
            return f"needs more than {format_bytes(self.memory_bytes)} of memory; allow more with --memory-limit"
        return f"takes longer than {self.time_s:g} s; allow more with --time-limit"


def limits_for(
    paths: Sequence[str | os.PathLike[str]], memory_limit: int | str | None, time_limit: float | None
) -> Limits:
    """By default the larger of 2 GiB and twice the files' size, and 300 s plus the time to stream the weights, up to a
    share of the machine's memory and to 12 hours."""
    size = sum(_stored_bytes(paths).values())
    largest = int(LARGEST_SHARE_OF_MEMORY * psutil.virtual_memory().total)
    memory = max(LEAST_MEMORY_BYTES, min(2 * size, largest))
    if memory_limit is not None:
        try:
            memory = int(parse_bytes(memory_limit)) if isinstance(memory_limit, str) else int(memory_limit)
        except (ValueError, OverflowError):
            memory = 0
        if memory <= 0:
            raise UsageError(f"'{memory_limit}' is not a memory limit; write a size such as 4GiB or 500MB")
    if time_limit is not None and not time_limit > 0:
        raise UsageError(f"a time limit must be a positive number of seconds, not {time_limit}")
    result = sys.maxsize if memory_limit is not None else RESULT_BYTES + RESULT_BYTES_PER_BYTE * size
    seconds = min(DEFAULT_TIME_S + size / SCANNED_BYTES_PER_S, LONGEST_TIME_S)
    return Limits(memory, seconds if time_limit is None else float(time_limit), result)


def _stored_bytes(paths: Sequence[str | os.PathLike[str]]) -> dict[tuple[int, int], int]:
    """What each file holds. One that has several names or links counts once, and holes of a sparse file do not."""
    found: dict[tuple[int, int], int] = {}
    for path in paths:
        place = Path(path)
        for file in place.rglob("*") if place.is_dir() else [place]:
            with suppress(OSError):  # reading it will raise a clear error
                facts = file.stat()
                if stat.S_ISREG(facts.st_mode):
                    found[facts.st_dev, facts.st_ino or len(found)] = _without_holes(file, facts)
    return found


def _without_holes(file: Path, facts: os.stat_result) -> int:
    blocks = getattr(facts, "st_blocks", None)
    if blocks:
        return min(facts.st_size, 512 * blocks)
    if blocks is None or not hasattr(os, "SEEK_DATA"):
        return facts.st_size
    # A file that is one hole, or a file system in user space that does not count blocks.
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.lseek(descriptor, 0, os.SEEK_DATA)
        return facts.st_size
    except OSError:
        return 0
    finally:
        os.close(descriptor)


def held_bytes(process: psutil.Process) -> int:
    """Memory of a process. On Linux also what resident memory does not show: what is swapped out, page tables, huge
    pages and threads."""
    if sys.platform != "linux":
        return int(process.memory_info().rss)
    facts = _HELD.findall(Path(f"/proc/{process.pid}/status").read_bytes())
    return sum(int(number) * (_THREAD_BYTES if name == b"Threads" else 1 << 10) for name, number in facts)


def limit_own_resources(limits: Limits) -> None:
    """The kernel's limits (core dumps, CPU time, allocation), in addition to those that the parent watches."""
    if sys.platform == "win32":
        return
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    seconds = int(limits.time_s * (os.cpu_count() or 1)) + 2
    _lower(resource.RLIMIT_CPU, seconds, seconds + _CPU_GRACE_S)
    _lower(resource.RLIMIT_NOFILE, _MOST_OPEN_FILES, _MOST_OPEN_FILES)
    if sys.platform == "linux":
        # Writable private memory, used or only reserved; twice the limit leaves room for reservations.
        status = Path("/proc/self/status").read_text().splitlines()
        held = next((int(line.split()[1]) << 10 for line in status if line.startswith("VmData:")), 0)
        most = held + 2 * limits.memory_bytes + (1 << 30)
        _lower(resource.RLIMIT_DATA, most, most)


def _lower(kind: int, soft: int, hard: int) -> None:
    import resource

    had = [value if value != resource.RLIM_INFINITY else sys.maxsize for value in resource.getrlimit(kind)]
    resource.setrlimit(kind, (min(soft, *had), min(hard, had[1])))
