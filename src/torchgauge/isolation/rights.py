"""Drop rights permanently: no writing, no network, no new processes. Barriers that a platform lacks are reported."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# Landlock's system calls have the same numbers on every architecture (Linux 5.13).
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1
# linux/landlock.h: everything but reading files and folders. REFER came with ABI 2, TRUNCATE with 3, IOCTL_DEV with 5.
_EXECUTE, _WRITE_FILE, _REFER, _TRUNCATE, _IOCTL = 1 << 0, 1 << 1, 1 << 13, 1 << 14, 1 << 15
_CHANGES = sum(1 << bit for bit in range(4, 13))  # remove and make, of every kind
_TCP = 0b11  # bind, connect (ABI 4)
_SCOPES = 0b11  # abstract Unix sockets, signals to others (ABI 6)
# Device files that must stay writable: the null device, the terminal, and those of GPU drivers.
_DEVICES = ("null", "tty", "nvidia*", "nvidia-caps/*", "dri/*")

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
        Barrier("landlock", "writing, removing and executing files, TCP connections", _no_landlock()),
        Barrier("seccomp", "network, new processes, changing files, other processes", _no_seccomp()),
    ]


def _no_landlock() -> str | None:
    if not sys.platform.startswith("linux"):
        return f"needs Linux, this is {sys.platform}"
    return None if _landlock_version() > 0 else "this kernel has no Landlock, or it is switched off"


def _no_seccomp() -> str | None:
    if not sys.platform.startswith("linux"):
        return f"needs Linux, this is {sys.platform}"
    if platform.machine() not in _MACHINES:
        return "no filter for this processor architecture"
    return None if Path("/proc/sys/kernel/seccomp").exists() else "this kernel has no seccomp"


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
    has_landlock = _no_landlock() is None
    if has_landlock:
        _apply_landlock()
    _drop_capabilities()
    if _no_seccomp() is None:
        # The filter of system calls, for all threads of this process and permanently.
        text = filter_program(denies_writing=not has_landlock)
        program, number = _Program(len(text) // 8, text), _MACHINES[platform.machine()].seccomp
        set_mode_filter, all_threads = 1, 1
        if _libc().syscall(number, set_mode_filter, all_threads, ctypes.byref(program)) != 0:
            raise OSError(ctypes.get_errno(), "seccomp")


def _apply_landlock() -> None:
    version = _landlock_version()
    handled = _EXECUTE | _WRITE_FILE | _CHANGES
    handled |= (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0) | (_IOCTL if version >= 5 else 0)
    attributes = struct.pack("=QQQ", handled, _TCP, _SCOPES)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = _libc().syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    if ruleset < 0:
        raise OSError(ctypes.get_errno(), "landlock_create_ruleset")
    allowed = handled & (_WRITE_FILE | _TRUNCATE | _IOCTL)
    for device in (path for pattern in _DEVICES for path in Path("/dev").glob(pattern) if path.is_char_device()):
        place = os.open(device, os.O_PATH | os.O_CLOEXEC)
        _libc().syscall(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", allowed, place), 0)
        os.close(place)
    if _libc().syscall(_RESTRICT_SELF, ruleset, 0) != 0:
        raise OSError(ctypes.get_errno(), "landlock_restrict_self")
    os.close(ruleset)


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


# A seccomp filter that denies the system calls that a reader of files does not need: network, new processes, changes to
# the file system, other processes' memory, kernel interfaces. Denied calls fail with EPERM. The numbers are from the
# kernel (arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h).

# Equal on every architecture since Linux 5.1.
_NEW_CALLS = {
    "pidfd_send_signal": 424, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_open": 434,
    "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442, "fchmodat2": 452, "setxattrat": 463,
    "removexattrat": 466,
}  # fmt: skip
_X86_64 = {
    "shmget": 29, "socket": 41, "connect": 42, "accept": 43, "sendto": 44, "sendmsg": 46, "bind": 49, "listen": 50,
    "socketpair": 53, "fork": 57, "vfork": 58, "execve": 59, "kill": 62, "semget": 64, "msgget": 68, "truncate": 76,
    "rename": 82, "mkdir": 83, "rmdir": 84, "creat": 85, "link": 86, "unlink": 87, "symlink": 88, "chmod": 90,
    "fchmod": 91, "chown": 92, "fchown": 93, "lchown": 94, "ptrace": 101, "rt_sigqueueinfo": 129, "utime": 132,
    "mknod": 133, "personality": 135, "pivot_root": 155, "setrlimit": 160, "chroot": 161, "acct": 163, "mount": 165,
    "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169, "init_module": 175, "delete_module": 176,
    "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190, "removexattr": 197, "lremovexattr": 198, "fremovexattr": 199,
    "tkill": 200, "utimes": 235, "mq_open": 240, "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250,
    "mkdirat": 258, "mknodat": 259, "fchownat": 260, "futimesat": 261, "unlinkat": 263, "renameat": 264, "linkat": 265,
    "symlinkat": 266, "fchmodat": 268, "unshare": 272, "utimensat": 280, "accept4": 288, "rt_tgsigqueueinfo": 297,
    "perf_event_open": 298, "fanotify_init": 300, "open_by_handle_at": 304, "setns": 308, "process_vm_readv": 310,
    "process_vm_writev": 311, "finit_module": 313, "renameat2": 316, "kexec_file_load": 320, "bpf": 321,
    "execveat": 322, "userfaultfd": 323,
}  # fmt: skip
_AARCH64 = {
    "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "removexattr": 14, "lremovexattr": 15, "fremovexattr": 16,
    "mknodat": 33, "mkdirat": 34, "unlinkat": 35, "symlinkat": 36, "linkat": 37, "renameat": 38, "umount2": 39,
    "mount": 40, "pivot_root": 41, "truncate": 45, "chroot": 51, "fchmod": 52, "fchmodat": 53, "fchownat": 54,
    "fchown": 55, "utimensat": 88, "acct": 89, "personality": 92, "unshare": 97, "kexec_load": 104, "init_module": 105,
    "delete_module": 106, "ptrace": 117, "kill": 129, "tkill": 130, "rt_sigqueueinfo": 138, "reboot": 142,
    "setrlimit": 164, "mq_open": 180, "msgget": 186, "semget": 190, "shmget": 194, "socket": 198, "socketpair": 199,
    "bind": 200, "listen": 201, "accept": 202, "connect": 203, "sendto": 206, "sendmsg": 211, "add_key": 217,
    "request_key": 218, "keyctl": 219, "execve": 221, "swapon": 224, "swapoff": 225, "rt_tgsigqueueinfo": 240,
    "perf_event_open": 241, "accept4": 242, "fanotify_init": 262, "open_by_handle_at": 265, "setns": 268,
    "process_vm_readv": 270, "process_vm_writev": 271, "finit_module": 273, "renameat2": 276, "bpf": 280,
    "execveat": 281, "userfaultfd": 282, "kexec_file_load": 294,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Machine:
    """`audit_arch` is the kernel's number of the architecture; the others are of calls whose arguments are checked."""

    audit_arch: int
    denied: dict[str, int]
    seccomp: int
    clone: int
    tgkill: int
    prlimit64: int
    openat: int
    open: int | None


_MACHINES = {
    "x86_64": _Machine(0xC000003E, _X86_64, seccomp=317, clone=56, tgkill=234, prlimit64=302, openat=257, open=2),
    "aarch64": _Machine(0xC00000B7, _AARCH64, seccomp=277, clone=220, tgkill=131, prlimit64=261, openat=56, open=None),
}
_CLONE3, _OPENAT2 = 435, 437
_CLONE_THREAD = 0x10000
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Numbers above this are calls of the x32 variant of x86-64.
_X32 = 0x40000000

# Classic BPF (linux/filter.h): load a word of the call's data, compare, return.
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _DENY, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE = 0, 4


def _argument(index: int, *, high: bool = False) -> int:
    """The offset of an argument's lower or upper half in the call's data; both machines are little-endian."""
    return 16 + 8 * index + (4 if high else 0)


def filter_program(*, denies_writing: bool) -> bytes:
    """The filter's instructions. `denies_writing`: also deny opening files for writing, without Landlock."""
    machine = _MACHINES[platform.machine()]
    code: list[tuple[int, int, int, int]] = []

    def deny(number: int, error: int = errno.EPERM) -> None:
        code.extend([(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _DENY | error)])

    def check_argument(number: int, place: int, test: tuple[int, int], *, denied_when: bool) -> None:
        """Deny the call if the test of one word of its arguments is `denied_when`; otherwise continue."""
        kind, value = test
        hit, miss = (0, 1) if denied_when else (1, 0)
        code.extend([
            (_EQUAL, 0, 4, number), (_LOAD, 0, 0, place), (kind, hit, miss, value),
            (_RETURN, 0, 0, _DENY | errno.EPERM), (_LOAD, 0, 0, _NUMBER),
        ])  # fmt: skip

    code.extend([(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, machine.audit_arch), (_RETURN, 0, 0, _KILL)])
    code.extend([(_LOAD, 0, 0, _NUMBER), (_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _DENY | errno.ENOSYS)])
    for number in (machine.denied | _NEW_CALLS).values():
        deny(number)
    # Its flags are in memory, which a filter cannot read; the C library falls back to clone.
    deny(_CLONE3, errno.ENOSYS)
    check_argument(machine.clone, _argument(0), (_ANY_BIT, _CLONE_THREAD), denied_when=False)
    check_argument(machine.tgkill, _argument(0), (_EQUAL, os.getpid()), denied_when=False)
    for high in (False, True):
        check_argument(machine.prlimit64, _argument(2, high=high), (_EQUAL, 0), denied_when=False)
    if denies_writing:
        deny(_OPENAT2, errno.ENOSYS)
        check_argument(machine.openat, _argument(2), (_ANY_BIT, _WRITING), denied_when=True)
        if machine.open is not None:
            check_argument(machine.open, _argument(1), (_ANY_BIT, _WRITING), denied_when=True)
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))
