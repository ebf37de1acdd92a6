"""perf_event_open: the kernel's counters of hardware and software events (Linux)."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torchgauge.measure.absence import Absent

# Kernel interface: include/uapi/linux/perf_event.h.
HARDWARE, SOFTWARE, RAW = 0, 1, 4
_TIMES_ENABLED_AND_RUNNING = 0b11
_DISABLED, _INHERIT, _EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR = 1 << 0, 1 << 1, 1 << 5, 1 << 6
_ENABLE, _DISABLE = 0x2400, 0x2401
_CLOSE_ON_EXEC = 1 << 3
# The number of the system call, by architecture (the kernel's syscall tables).
_SYSCALL = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "ppc64le": 319, "s390x": 331}
_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
# Counting one's own user code needs this level or a lower one; counting a whole machine needs 0.
_OWN_CODE, _WHOLE_MACHINE = 2, 0


@dataclass(frozen=True, slots=True)
class Event:
    """What to count. `machine_cpu` is where an event of the whole machine is read; else it is this process's."""

    name: str
    kind: int
    config: int
    machine_cpu: int | None = None
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Count:
    """One reading: the events seen, and for how long the counter was wanted and was really counting. The processor
    has few counters, so the kernel takes turns."""

    value: int
    enabled_ns: int
    running_ns: int

    @property
    def running_share(self) -> float:
        return self.running_ns / self.enabled_ns if self.enabled_ns else 1.0

    def scaled(self) -> float | None:
        """As if it had counted all the time; None where it never got its turn."""
        if not self.enabled_ns:
            return float(self.value)
        return self.value * self.enabled_ns / self.running_ns if self.running_ns else None


class Kernel(Protocol):
    """What counting needs of the kernel; a replay of recorded readings is another."""

    def threads(self) -> list[int]: ...

    def open(self, event: Event, thread: int) -> int | Absent | None: ...

    def start(self, counter: int) -> None: ...

    def stop(self, counter: int) -> None: ...

    def read(self, counter: int) -> Count: ...

    def close(self, counter: int) -> None: ...


class _Attributes(ctypes.Structure):
    """struct perf_event_attr, its first version: later kernels accept it."""

    _fields_ = [
        ("type", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("config", ctypes.c_uint64),
        ("sample_period", ctypes.c_uint64),
        ("sample_type", ctypes.c_uint64),
        ("read_format", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
        ("wakeup_events", ctypes.c_uint32),
        ("bp_type", ctypes.c_uint32),
        ("config1", ctypes.c_uint64),
    ]


class LinuxKernel:
    """A counter is a file descriptor."""

    def threads(self) -> list[int]:
        """All of this process: a counter is inherited by threads made later, not by those that are there."""
        return [int(name) for name in os.listdir("/proc/self/task")]

    def open(self, event: Event, thread: int) -> int | Absent | None:
        """None if the thread has ended."""
        number = _SYSCALL.get(platform.machine())
        if number is None:
            return Absent(f"counters on {platform.machine()} are not supported")
        is_own = event.machine_cpu is None
        flags = _DISABLED | (_INHERIT | _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR if is_own else 0)
        attributes = _Attributes(
            type=event.kind,
            size=ctypes.sizeof(_Attributes),
            config=event.config,
            read_format=_TIMES_ENABLED_AND_RUNNING,
            flags=flags,
        )
        pid, cpu = (thread, -1) if event.machine_cpu is None else (-1, event.machine_cpu)
        libc = ctypes.CDLL(None, use_errno=True)
        counter = libc.syscall(
            ctypes.c_long(number), ctypes.byref(attributes), ctypes.c_int(pid), ctypes.c_int(cpu), ctypes.c_int(-1),
            ctypes.c_ulong(_CLOSE_ON_EXEC),
        )  # fmt: skip
        if counter >= 0:
            return int(counter)
        code = ctypes.get_errno()
        return None if code == errno.ESRCH else refusal(code, paranoid_level(), is_own=is_own)

    def start(self, counter: int) -> None:
        self._control(counter, _ENABLE)

    def stop(self, counter: int) -> None:
        self._control(counter, _DISABLE)

    def read(self, counter: int) -> Count:
        return decode(os.read(counter, 24))

    def close(self, counter: int) -> None:
        os.close(counter)

    def _control(self, counter: int, request: int) -> None:
        import fcntl

        fcntl.ioctl(counter, request, 0)


def decode(record: bytes) -> Count:
    """Value, time enabled, time running: three unsigned 64-bit numbers."""
    return Count(*struct.unpack("=QQQ", record))


def paranoid_level() -> int | None:
    try:
        return int(_PARANOID.read_text())
    except (OSError, ValueError):
        return None


def refusal(code: int, paranoid: int | None, *, is_own: bool = True) -> Absent:
    """Why the kernel did not open a counter, and what would help."""
    needed = _OWN_CODE if is_own else _WHOLE_MACHINE
    if code in (errno.EACCES, errno.EPERM):
        if paranoid is not None and paranoid > needed:
            return Absent(
                f"not permitted: kernel.perf_event_paranoid is {paranoid}, and this needs {needed} or lower "
                f"(sysctl kernel.perf_event_paranoid={needed}) or CAP_PERFMON"
            )
        return Absent(
            "not permitted, although perf_event_paranoid allows it: a container's seccomp filter, most likely"
        )
    if code in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
        return Absent("the processor, or the virtual machine around it, does not offer this event")
    if code == errno.ENOSYS:
        return Absent("this kernel has no performance counters")
    if code == errno.EMFILE:
        return Absent("too many open files: raise the limit (ulimit -n)")
    return Absent(f"the kernel refused it: {os.strerror(code)}")


def kernel() -> Kernel | Absent:
    return LinuxKernel() if sys.platform == "linux" else Absent("hardware counters are read on Linux only")
