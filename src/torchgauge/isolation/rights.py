"""Drop rights permanently: no writing, no network, no new processes. Barriers that a platform lacks are reported."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from torchgauge.errors import TorchgaugeError
from torchgauge.isolation import seccomp

# Landlock's system calls have the same numbers on every architecture (Linux 5.13).
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1
# linux/landlock.h: everything but listing folders. REFER came with ABI 2, TRUNCATE with 3, IOCTL_DEV with 5.
_EXECUTE, _WRITE_FILE, _READ_FILE, _REFER, _TRUNCATE, _IOCTL = 1 << 0, 1 << 1, 1 << 2, 1 << 13, 1 << 14, 1 << 15
# Older ones let a file be truncated that is opened for reading.
_FIRST_ABI_THAT_GUARDS_CONTENT = 3
_CHANGES = sum(1 << bit for bit in range(4, 13))  # remove and make, of every kind
_TCP = 0b11  # bind, connect (ABI 4)
_SCOPES = 0b11  # abstract Unix sockets, signals to others (ABI 6)
# Device files that must stay writable: the null device, and those of GPU drivers, which are asked for the GPUs.
_DEVICES = ("null", "nvidia*", "nvidia-caps/*", "dri/*")
# What else may be read in /dev. Terminals, on which the user types, disks and the kernel's log may not.
_READABLE_IN_DEV = ("zero", "full", "random", "urandom", "shm")

_SET_NO_NEW_PRIVS, _SET_DEATH_SIGNAL, _SIGKILL = 38, 1, 9
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION = 0x20080522
# Lets root read files of other users; every other capability is dropped.
_READ_ALL_FILES = 1 << 2


@dataclass(frozen=True, slots=True)
class Barrier:
    """One part of the isolation; `reason` is why it is missing here."""

    name: str
    prevents: str
    reason: str | None = None

    @property
    def is_active(self) -> bool:
        return self.reason is None


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def barriers() -> list[Barrier]:
    """The barriers around a reader on this machine; nothing is changed."""
    return [
        Barrier("memory limit", "more resident memory than --memory-limit"),
        Barrier("time limit", "more time than --time-limit"),
        Barrier("landlock", "writing and executing files, reading devices, TCP connections", _no_landlock()),
        Barrier("seccomp", "all system calls but those for reading: network, processes", _no_seccomp()),
    ]


def missing_barriers() -> str | None:
    """The barriers that this machine lacks, with the reasons; None if it has all."""
    missing = [f"{barrier.name} ({barrier.reason})" for barrier in barriers() if not barrier.is_active]
    return " and ".join(missing) or None


def require_barriers() -> None:
    if (missing := missing_barriers()) is not None:
        raise TorchgaugeError(f"isolation is required, and this machine lacks {missing}; see torchgauge system")


def _no_landlock() -> str | None:
    if not sys.platform.startswith("linux"):
        return f"needs Linux, this is {sys.platform}"
    return None if _landlock_version() > 0 else "this kernel has no Landlock, or it is switched off"


def _no_seccomp() -> str | None:
    if not sys.platform.startswith("linux"):
        return f"needs Linux, this is {sys.platform}"
    if not seccomp.is_supported():
        return "no filter for this processor architecture"
    return None if Path("/proc/sys/kernel/seccomp").exists() else "this kernel has no seccomp"


@cache  # a process without rights cannot ask
def _landlock_version() -> int:
    return int(_libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION))


def end_with_parent() -> None:
    """End this process if its parent is killed, because nothing would limit it any more."""
    if sys.platform.startswith("linux"):
        _libc().prctl(_SET_DEATH_SIGNAL, _SIGKILL)


def reuse_freed_memory() -> None:
    """Start with the thresholds that glibc's allocator adapts to only after it has freed large blocks. Until then it
    returns them to the kernel, and a short-lived reader would spend a tenth of its time on page faults."""
    if sys.platform.startswith("linux") and hasattr(_libc(), "mallopt"):  # not in musl
        mmap_threshold, trim_threshold, largest = -3, -1, 32 << 20
        _libc().mallopt(mmap_threshold, largest)
        _libc().mallopt(trim_threshold, 2 * largest)


class HasThreadsError(Exception):
    """The process has more than one thread, and rights can be dropped only for the calling one."""


def drop_rights() -> None:
    """Afterwards this process cannot write files, connect or start processes. Threads must be started later, because
    Landlock only applies to the calling thread and those it starts."""
    if not sys.platform.startswith("linux"):
        return
    if len(os.listdir("/proc/self/task")) > 1:
        raise HasThreadsError("rights can be dropped only before the first thread starts")
    if _libc().prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs")
    version = max(_landlock_version(), 0)
    if version:
        _apply_landlock(version)
    _drop_capabilities()
    if _no_seccomp() is None:
        seccomp.apply_filter(_libc(), denies_writing=version < _FIRST_ABI_THAT_GUARDS_CONTENT)


def _apply_landlock(version: int) -> None:
    handled = _EXECUTE | _WRITE_FILE | _READ_FILE | _CHANGES
    handled |= (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0) | (_IOCTL if version >= 5 else 0)
    attributes = struct.pack("=QQQ", handled, _TCP, _SCOPES)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = _libc().syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    if ruleset < 0:
        raise OSError(ctypes.get_errno(), "landlock_create_ruleset")
    writable = handled & (_READ_FILE | _WRITE_FILE | _TRUNCATE | _IOCTL)
    for rights, places in ((_READ_FILE, _readable_places()), (writable, _writable_devices())):
        for place in places:
            with suppress(OSError):  # a dangling link, or a folder that this user may not enter
                opened = os.open(place, os.O_PATH | os.O_CLOEXEC)
                _libc().syscall(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, opened), 0)
                os.close(opened)
    if _libc().syscall(_RESTRICT_SELF, ruleset, 0) != 0:
        raise OSError(ctypes.get_errno(), "landlock_restrict_self")
    os.close(ruleset)


def _readable_places() -> Iterator[str]:
    """Everything but /dev: rules only add rights, so none can be taken back from a part of what is allowed."""
    yield from (f"/{name}" for name in os.listdir("/") if name != "dev")
    yield from (f"/dev/{name}" for name in _READABLE_IN_DEV)


def _writable_devices() -> Iterator[str]:
    return (str(path) for pattern in _DEVICES for path in Path("/dev").glob(pattern) if path.is_char_device())


def _drop_capabilities() -> None:
    """A root user only keeps the right to read all files."""
    number = _CAPSET.get(os.uname().machine)
    held = next(
        int(line[7:], 16) for line in Path("/proc/self/status").read_text().splitlines() if line[:7] == "CapPrm:"
    )
    if number is None or held == 0:
        return
    kept = held & _READ_ALL_FILES
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    if _libc().syscall(number, header, struct.pack("=6I", kept, kept, 0, 0, 0, 0)) != 0:
        error = ctypes.get_errno()
        if error != errno.EPERM:
            raise OSError(error, "capset")
