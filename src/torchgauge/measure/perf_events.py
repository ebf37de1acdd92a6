"""perf_event_open: the kernel's counters of hardware and software events (Linux), and the raw events that count
floating-point work on the processors whose codes are known.

Codes: the kernel's own tables, tools/perf/pmu-events/arch/x86 (floating-point.json of each processor, mapfile.csv for
the models), which come from Intel's perfmon repository and AMD's processor programming references.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Mapping
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
    """An event to count. `machine_cpu` is where an event of the whole machine is read; None for this process."""

    name: str
    kind: int
    config: int
    machine_cpu: int | None = None
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Count:
    """One reading: the number of events, how long the counter was enabled and how long it was counting. The processor
    has few counters, so the kernel multiplexes them."""

    value: int
    enabled_ns: int
    running_ns: int

    @property
    def running_share(self) -> float:
        return self.running_ns / self.enabled_ns if self.enabled_ns else 1.0

    def scaled(self) -> float | None:
        """Extrapolated to the whole time; None if it was never scheduled."""
        if not self.enabled_ns:
            return float(self.value)
        return self.value * self.enabled_ns / self.running_ns if self.running_ns else None


class Kernel(Protocol):
    """The kernel's interface that counting uses; tests replay recorded readings."""

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
        """All threads of this process: a counter is inherited by threads created later, not by existing ones."""
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


_CPUINFO = Path("/proc/cpuinfo")
# The first processor's entry, with its long line of flags.
_CPUINFO_BYTES = 16384

# Family 6: Broadwell, Skylake, Cascade Lake, Ice Lake, Tiger and Rocket Lake, Sapphire, Emerald and Granite Rapids.
_INTEL_MODELS = frozenset({
    0x3D, 0x47, 0x4F, 0x56, 0x4E, 0x5E, 0x8E, 0x9E, 0xA5, 0xA6, 0x55, 0x6A, 0x6C, 0x7D, 0x7E, 0x8C, 0x8D, 0xA7, 0x8F,
    0xCF, 0xAD, 0xAE,
})  # fmt: skip
# FP_ARITH_INST_RETIRED (0xC7): mask -> name, width in bits (0: scalar), operations per count; a fused multiply-add
# counts twice.
_INTEL = {
    0x01: ("scalar_double", 0, 1), 0x02: ("scalar_single", 0, 1),
    0x04: ("128_double", 128, 2), 0x08: ("128_single", 128, 4),
    0x10: ("256_double", 256, 4), 0x20: ("256_single", 256, 8),
    0x40: ("512_double", 512, 8), 0x80: ("512_single", 512, 16),
}  # fmt: skip
# FP_ARITH_INST_RETIRED2 (0xCF), where AVX512-FP16 is.
_INTEL_HALF = {
    0x01: ("scalar_half", 0, 1), 0x04: ("128_half", 128, 8), 0x08: ("256_half", 256, 16), 0x10: ("512_half", 512, 32)
}  # fmt: skip
# fp_ops_retired_by_width (0x08) of Zen 4 and 5 counts instructions: how wide, not how much.
_AMD_WIDTHS = {0x04: ("scalar", 0), 0x08: ("128", 128), 0x10: ("256", 256), 0x20: ("512", 512)}


@dataclass(frozen=True, slots=True)
class Processor:
    vendor: str = ""
    family: int = 0
    model: int = 0
    flags: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class FloatEvent:
    """`width_bits` 0 is scalar, None if the event does not say; `flops` is operations per count."""

    event: Event
    width_bits: int | None
    flops: int


def this_processor() -> Processor:
    try:
        with _CPUINFO.open("rb") as file:
            return parse_processor(file.read(_CPUINFO_BYTES).decode(errors="replace"))
    except OSError:
        return Processor()


def parse_processor(text: str) -> Processor:
    """The first entry of /proc/cpuinfo."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), value.strip())
    return Processor(
        vendor=found.get("vendor_id", ""),
        family=_number(found, "cpu family"),
        model=_number(found, "model"),
        flags=frozenset(found.get("flags", "").split()),
    )


def _number(found: Mapping[str, str], key: str) -> int:
    text = found.get(key, "")
    return int(text) if text.isdigit() else 0


def float_events(processor: Processor) -> list[FloatEvent] | Absent:
    if processor.vendor == "GenuineIntel" and processor.family == 6 and processor.model in _INTEL_MODELS:
        events = [
            _raw(name, 0xC7, mask, width, flops)
            for mask, (name, width, flops) in _INTEL.items()
            if width < 512 or "avx512f" in processor.flags
        ]
        if "avx512_fp16" in processor.flags:
            events += [_raw(name, 0xCF, mask, width, flops) for mask, (name, width, flops) in _INTEL_HALF.items()]
        return events
    if processor.vendor == "AuthenticAMD" and processor.family in (0x17, 0x19, 0x1A):
        # fp_ret_sse_avx_ops.all (0x03) counts operations, whatever the width.
        is_zen5 = processor.family == 0x1A
        # mapfile.csv: in family 19h the models 0-F, 20-2F, 40-5F are Zen 3, the others Zen 4.
        is_zen4 = processor.family == 0x19 and processor.model >> 4 not in (0, 2, 4, 5)
        mask = 0x0F if is_zen5 else 0x1F if is_zen4 else 0xFF
        widths = _AMD_WIDTHS if is_zen4 or is_zen5 else {}
        return [
            _raw("all", 0x03, mask, None, 1),
            *(_raw(f"{name}_instructions", 0x08, bits, width, 0) for bits, (name, width) in widths.items()),
        ]
    return Absent("the codes of this processor's floating-point events are not known")


def _raw(name: str, event: int, mask: int, width: int | None, flops: int) -> FloatEvent:
    return FloatEvent(Event(f"float_{name}", RAW, event | mask << 8), width, flops)


def uncounted_work(processor: Processor) -> list[str]:
    """Arithmetic that these events do not see."""
    kinds = {"amx_tile": "AMX tiles", "avx512_bf16": "bfloat16 dot products", "avx512_vnni": "int8 dot products"}
    present = [text for flag, text in kinds.items() if flag in processor.flags and processor.vendor == "GenuineIntel"]
    return [f"not among the measured floating-point operations: {', '.join(present)}"] if present else []
