"""The processor, the cores and the memory."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from functools import cache
from pathlib import Path

import psutil

# The first processor of the file names them all. The kernel writes the file as it is read, slowly on large machines.
_CPUINFO_BYTES = 4096


def usable_cores() -> int | None:
    """Logical cores this process may use: fewer than the machine has under an affinity mask."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


@cache
def platform_name() -> str:
    if sys.platform != "linux":
        return platform.platform()
    # As platform.platform() puts it, which starts a process (uname -p) for what it then leaves out.
    system = os.uname()
    return f"{system.sysname}-{system.release}-{system.machine}-with-{''.join(platform.libc_ver())}"


@cache
def total_memory() -> int:
    return int(psutil.virtual_memory().total)


@cache
def cpu_name() -> str:
    """The processor as its vendor calls it, or its architecture where the system does not tell."""
    readers = {"linux": _cpu_name_linux, "darwin": _cpu_name_macos, "win32": _cpu_name_windows}
    reader = readers.get(sys.platform)
    return (reader() if reader else "") or platform.processor() or platform.machine() or "unknown"


def _cpu_name_linux() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return ""
    with cpuinfo.open("rb") as file:
        return parse_cpuinfo(file.read(_CPUINFO_BYTES).decode(errors="replace"))


def parse_cpuinfo(text: str) -> str:
    """The name in the text of /proc/cpuinfo; "" where there is none, as on most ARM machines."""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "cpu model", "Processor"):
            return " ".join(value.split())
    return ""


def _cpu_name_macos() -> str:
    command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=2, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip()


def _cpu_name_windows() -> str:
    return os.environ.get("PROCESSOR_IDENTIFIER", "")
