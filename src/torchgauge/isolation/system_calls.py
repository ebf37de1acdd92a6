"""The system calls that a reader of files needs, with their numbers; every other one is denied.

Found with `strace` under all commands and formats, the kernels of numba and torch and the imports of transformers. Some
are only used by other C libraries (musl, older glibc). A captured reader can use all of them, so each must be harmless:
it reads, or changes nothing but the process itself.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import NamedTuple


class Numbers(NamedTuple):
    """The number on each architecture; None where the call does not exist (linux/unistd.h)."""

    x86_64: int | None
    aarch64: int | None


# Opening for writing is denied by Landlock, and by `CONDITIONS` where Landlock is too old for it.
_READING = {
    "read": Numbers(0, 63), "pread64": Numbers(17, 67), "readv": Numbers(19, 65), "preadv": Numbers(295, 69),
    "preadv2": Numbers(327, 286), "lseek": Numbers(8, 62), "open": Numbers(2, None), "openat": Numbers(257, 56),
    "close": Numbers(3, 57), "close_range": Numbers(436, 436), "stat": Numbers(4, None), "fstat": Numbers(5, 80),
    "lstat": Numbers(6, None), "newfstatat": Numbers(262, 79), "statx": Numbers(332, 291), "access": Numbers(21, None),
    "faccessat": Numbers(269, 48), "faccessat2": Numbers(439, 439), "readlink": Numbers(89, None),
    "readlinkat": Numbers(267, 78), "getdents": Numbers(78, None), "getdents64": Numbers(217, 61),
    "getcwd": Numbers(79, 17), "statfs": Numbers(137, 43), "fstatfs": Numbers(138, 44), "fadvise64": Numbers(221, 223),
    "ioctl": Numbers(16, 29), "fcntl": Numbers(72, 25), "dup": Numbers(32, 23), "dup2": Numbers(33, None),
    "dup3": Numbers(292, 24),
}  # fmt: skip
# To the parent: no other file is open for writing.
_ANSWERING = {"write": Numbers(1, 64), "writev": Numbers(20, 66)}
_WAITING = {
    "poll": Numbers(7, None), "ppoll": Numbers(271, 73), "select": Numbers(23, None), "pselect6": Numbers(270, 72),
    "epoll_create1": Numbers(291, 20), "epoll_ctl": Numbers(233, 21), "epoll_wait": Numbers(232, None),
    "epoll_pwait": Numbers(281, 22),
}  # fmt: skip
# Writable memory may become executable: numba and torch generate code. It runs under the same filter.
_MEMORY = {
    "mmap": Numbers(9, 222), "munmap": Numbers(11, 215), "mremap": Numbers(25, 216), "mprotect": Numbers(10, 226),
    "brk": Numbers(12, 214), "madvise": Numbers(28, 233), "mbind": Numbers(237, 235),
    "get_mempolicy": Numbers(239, 236), "membarrier": Numbers(324, 283),
}  # fmt: skip
_THREADS = {
    "clone": Numbers(56, 220), "futex": Numbers(202, 98), "set_robust_list": Numbers(273, 99),
    "set_tid_address": Numbers(218, 96), "rseq": Numbers(334, 293), "exit": Numbers(60, 93),
    "exit_group": Numbers(231, 94), "sched_yield": Numbers(24, 124), "sched_getaffinity": Numbers(204, 123),
    "sched_setaffinity": Numbers(203, 122), "arch_prctl": Numbers(158, None), "prctl": Numbers(157, 167),
    "gettid": Numbers(186, 178), "getcpu": Numbers(309, 168),
}  # fmt: skip
_SIGNALS = {
    "rt_sigaction": Numbers(13, 134), "rt_sigprocmask": Numbers(14, 135), "rt_sigreturn": Numbers(15, 139),
    "sigaltstack": Numbers(131, 132), "restart_syscall": Numbers(219, 128), "kill": Numbers(62, 129),
    "tkill": Numbers(200, 130), "tgkill": Numbers(234, 131),
}  # fmt: skip
_CLOCKS = {
    "clock_gettime": Numbers(228, 113), "clock_getres": Numbers(229, 114), "clock_nanosleep": Numbers(230, 115),
    "nanosleep": Numbers(35, 101), "gettimeofday": Numbers(96, 169), "time": Numbers(201, None),
    "times": Numbers(100, 153), "getrusage": Numbers(98, 165),
}  # fmt: skip
_FACTS = {
    "getpid": Numbers(39, 172), "getppid": Numbers(110, 173), "getuid": Numbers(102, 174),
    "geteuid": Numbers(107, 175), "getgid": Numbers(104, 176), "getegid": Numbers(108, 177), "uname": Numbers(63, 160),
    "sysinfo": Numbers(99, 179), "getrlimit": Numbers(97, 163), "prlimit64": Numbers(302, 261),
    "getrandom": Numbers(318, 278),
}  # fmt: skip
ALLOWED = {**_READING, **_ANSWERING, **_WAITING, **_MEMORY, **_THREADS, **_SIGNALS, **_CLOCKS, **_FACTS}

# From this number on (Linux 5.1, equal on all architectures), libraries expect that a kernel may lack a call.
FIRST_OPTIONAL_CALL = 424


@dataclass(frozen=True, slots=True)
class Condition:
    """What an argument must be: one of `values`, after `& mask`. The kernel takes it as 32 bits and ignores the others;
    if it `is_wide`, the upper half must be zero."""

    argument: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF
    is_wide: bool = False


# linux/sched.h: memory, files, signal handlers and System V semaphores are shared with the new thread; C libraries add
# where its id is stored and cleared, its thread-local storage and (musl) the obsolete CLONE_DETACHED.
_THREAD_FLAGS = 0x100 | 0x200 | 0x400 | 0x800 | 0x10000 | 0x40000
_THREAD_OPTIONS = 0x80000 | 0x100000 | 0x200000 | 0x400000 | 0x1000000
_FCNTL = (0, 1, 2, 3, 4, 5, 1030)  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_GETLK, F_DUPFD_CLOEXEC
# TCGETS, TCGETS2, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX: about a descriptor itself, nothing is typed or set.
_IOCTL = (0x5401, 0x802C542A, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
# PR_GET_DUMPABLE, PR_SET_NAME, PR_GET_NAME, PR_GET_SECCOMP, PR_CAPBSET_READ, PR_SVE_GET_VL, PR_SET_VMA (a name).
_PRCTL = (3, 15, 16, 21, 23, 51, 0x53564D41)
_MAP_TYPE, _MAP_PRIVATE = 0xF, 2
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def conditions(own_pid: int, *, denies_writing: bool) -> dict[str, list[Condition]]:
    """The arguments that allowed calls may have. `denies_writing`: also deny opening files for writing."""
    found = {
        "clone": [Condition(0, (_THREAD_FLAGS,), mask=0xFFFFFFFF & ~_THREAD_OPTIONS)],
        "fcntl": [Condition(1, _FCNTL)],
        "ioctl": [Condition(1, _IOCTL)],
        "prctl": [Condition(0, _PRCTL)],
        # Shared memory may be held without being mapped, where no limit counts it.
        "mmap": [Condition(3, (_MAP_PRIVATE,), mask=_MAP_TYPE)],
        "kill": [Condition(0, (own_pid,))],
        "tkill": [Condition(0, (own_pid,))],  # how musl raises a signal in its main thread
        "tgkill": [Condition(0, (own_pid,))],
        "sched_setaffinity": [Condition(0, (0,))],  # of the calling thread
        "prlimit64": [Condition(2, (0,), is_wide=True)],  # no new limit
    }
    if denies_writing:
        found |= {"openat": [Condition(2, (0,), mask=WRITING)], "open": [Condition(1, (0,), mask=WRITING)]}
    return found
