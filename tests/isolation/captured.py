"""What a captured reader tries: system calls by number, with arguments that would do harm or be told apart.

Each attempt raises an OSError or returns what the call did. Outside the isolation, a call fails for its arguments
(EFAULT, EBADF, ENOTTY, …) or succeeds; inside, it is refused before the kernel looks at them.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import platform
from collections.abc import Callable
from functools import partial
from pathlib import Path

from torchgauge.isolation import Limits, run_isolated
from torchgauge.isolation.system_calls import ALLOWED

LIMITS = Limits(memory_bytes=1 << 30, time_s=120)
REFUSED = (errno.EPERM, errno.EACCES, errno.ENOSYS)
NOBODY = 65534
# Calls that are not in the table of the product, by architecture (linux/unistd.h).
OTHERS = {
    "creat": (85, None), "openat2": (437, 437), "truncate": (76, 45), "ftruncate": (77, 46), "pwrite64": (18, 68),
    "fallocate": (285, 47), "rename": (82, None), "renameat2": (316, 276), "unlinkat": (263, 35), "linkat": (265, 37),
    "symlinkat": (266, 36), "mkdirat": (258, 34), "mknodat": (259, 33), "fchmod": (91, 52), "fchmodat": (268, 53),
    "fchownat": (260, 54), "utimensat": (280, 88), "setxattr": (188, 5), "fsetxattr": (190, 7),
    "removexattr": (197, 14), "file_setattr": (469, 469), "open_tree": (428, 428), "open_tree_attr": (467, 467),
    "mount": (165, 40), "mount_setattr": (442, 442), "chroot": (161, 51), "flock": (73, 32),
    "fanotify_init": (300, 262),
    "inotify_init1": (294, 26), "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264),
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "msgget": (68, 186),
    "semget": (64, 190), "mq_open": (240, 180), "pipe2": (293, 59), "eventfd2": (290, 19), "splice": (275, 76),
    "vmsplice": (278, 75), "mlockall": (151, 230), "remap_file_pages": (216, 234), "process_madvise": (440, 440),
    "process_mrelease": (448, 448), "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203),
    "bind": (49, 200), "sendto": (44, 206), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "execve": (59, 221), "execveat": (322, 281), "fork": (57, None), "vfork": (58, None), "clone3": (435, 435),
    "unshare": (272, 97), "setns": (308, 268), "setsid": (112, 157), "setpgid": (109, 154), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272), "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "setpriority": (141, 140), "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118), "sched_setattr": (314, 274), "ioprio_set": (251, 30), "setrlimit": (160, 164),
    "migrate_pages": (256, 238), "move_pages": (279, 239), "get_robust_list": (274, 100), "setuid": (105, 146),
    "setgroups": (116, 159), "capset": (126, 91), "personality": (135, 92), "seccomp": (317, 277), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "keyctl": (250, 219), "add_key": (248, 217),
    "timer_create": (222, 107), "timerfd_create": (283, 85), "signalfd4": (289, 74), "syslog": (103, 116),
    "sethostname": (170, 161), "clock_settime": (227, 112), "quotactl": (179, 60), "acct": (163, 89),
    "swapon": (167, 224), "init_module": (175, 105), "kexec_load": (246, 104), "iopl": (172, None),
    "ioperm": (173, None), "modify_ldt": (154, None),
}  # fmt: skip

_THREAD = 0x3D0F00
_HIGH = 0xABCD << 32  # the kernel ignores it
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def number_of(name: str) -> int | None:
    column = 0 if platform.machine() == "x86_64" else 1
    return (ALLOWED.get(name) or OTHERS[name])[column]


def call(name: str, *arguments: int | bytes) -> int:
    return call_number(number_of(name), *arguments)


def call_number(number: int | None, *arguments: int | bytes) -> int:
    if number is None:
        raise OSError(errno.ENOSYS, "not on this architecture")
    converted = [part if isinstance(part, bytes) else ctypes.c_ulong(part % (1 << 64)) for part in arguments]
    answer = int(_libc.syscall(ctypes.c_long(number), *converted))
    if answer == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer


def in_child(name: str, *arguments: int | bytes) -> int:
    """A call that returns in two processes where it is allowed."""
    answer = call(name, *arguments)
    if answer == 0:
        os._exit(0)
    return answer


def opens(path: str | Path, flags: int, mode: int = 0o600) -> int:
    return call("openat", -100, os.fsencode(path), flags, mode)


Attempt = Callable[[Path], object]

# The request on the null device, which it has open.
IOCTLS = {
    "TIOCSTI": 0x5412, "TIOCSTI with high bits": 0x5412 | _HIGH, "TIOCLINUX": 0x541C, "TIOCSCTTY": 0x540E,
    "TIOCNOTTY": 0x5422, "TCSETS": 0x5402, "TCSETSF": 0x5404, "TCSETS2": 0x402C542B, "TIOCSWINSZ": 0x5414,
    "TIOCSETD": 0x5423, "TIOCCONS": 0x541D, "TIOCSPGRP": 0x5410, "TIOCPKT": 0x5420, "TIOCGPTPEER": 0x5441,
    "TIOCVHANGUP": 0x5437, "FIOASYNC": 0x5452, "FIOSETOWN": 0x8901, "SIOCSPGRP": 0x8902, "FS_IOC_SETFLAGS": 0x40086602,
    "FS_IOC_FSSETXATTR": 0x401C5820, "FS_IOC_SETVERSION": 0x40087602, "FICLONE": 0x40049409,
    "FIDEDUPERANGE": 0xC0189436, "FIBMAP": 1, "USERFAULTFD_IOC_NEW": 0xAA00, "TCGETS in the high half": 0x5401 << 32,
}  # fmt: skip
FCNTLS = {
    "F_SETLK": 6, "F_SETLKW": 7, "F_SETOWN": 8, "F_SETOWN with high bits": 8 | _HIGH, "F_SETSIG": 10,
    "F_SETOWN_EX": 15, "F_OFD_SETLK": 37, "F_OFD_SETLKW": 38, "F_SETLEASE": 1024, "F_NOTIFY": 1026,
    "F_SETPIPE_SZ": 1031, "F_ADD_SEALS": 1033, "F_SET_RW_HINT": 1036,
}  # fmt: skip
PRCTLS = {
    "PR_SET_PDEATHSIG": 1, "PR_SET_DUMPABLE": 4, "PR_SET_KEEPCAPS": 8, "PR_SET_SECCOMP": 22, "PR_SET_TSC": 26,
    "PR_SET_SECUREBITS": 28, "PR_SET_TIMERSLACK": 29, "PR_MCE_KILL": 33, "PR_SET_MM": 35, "PR_SET_CHILD_SUBREAPER": 36,
    "PR_SET_THP_DISABLE": 41, "PR_CAP_AMBIENT": 47, "PR_SET_SPECULATION_CTRL": 53, "PR_SCHED_CORE": 62,
    "PR_SET_PTRACER": 0x59616D61, "PR_SET_PDEATHSIG with high bits": 1 | _HIGH,
}  # fmt: skip
CLONES = {
    "a process": 17, "a process like vfork": 0x4111, "a process with high bits": 17 | _HIGH,
    "a user namespace": 0x10000011,
    "a network namespace": 0x40000011, "a process namespace": 0x20000011, "a sibling": 0x8011,
    "a thread in a namespace": _THREAD | 0x10000000, "a traced thread": _THREAD | 0x2000,
    "a thread without shared files": _THREAD & ~0x400, "a thread without shared memory": _THREAD & ~0x100,
}  # fmt: skip
MAPS = {
    "anonymous": mmap.MAP_SHARED | mmap.MAP_ANONYMOUS, "validated": 3 | mmap.MAP_ANONYMOUS,
    "droppable": 8 | mmap.MAP_ANONYMOUS, "with high bits": mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _HIGH,
}  # fmt: skip
WRITES = {
    "for writing": os.O_WRONLY, "for both": os.O_RDWR, "for appending": os.O_WRONLY | os.O_APPEND,
    "truncated": os.O_WRONLY | os.O_TRUNC, "truncated while reading": os.O_RDONLY | os.O_TRUNC,
    "for writing with high bits": os.O_WRONLY | _HIGH,
}  # fmt: skip
# To whom it must not do anything: the parent, init, all, its process group.
SIGNALLED: dict[str, Callable[[], int]] = {
    "the parent": os.getppid, "init": lambda: 1, "everybody": lambda: -1, "a group": lambda: 0,
}  # fmt: skip


def calling(name: str, *arguments: int | bytes) -> Attempt:
    return lambda _: call(name, *arguments)


def starting(name: str, *arguments: int | bytes) -> Attempt:
    return lambda _: in_child(name, *arguments)


def signalling(name: str, pid: Callable[[], int]) -> Attempt:
    return lambda _: call(name, pid(), *([pid()] if name == "tgkill" else []), 0)


def opening(name: str, flags: int) -> Attempt:
    return lambda folder: opens(folder / name, flags)


def reading(path: Callable[[], str]) -> Attempt:
    return lambda _: os.read(opens(path(), os.O_RDONLY | os.O_NONBLOCK), 1)


ATTEMPTS: dict[str, Attempt] = {
    **{f"ioctl {name}": calling("ioctl", 0, request, 0) for name, request in IOCTLS.items()},
    **{f"fcntl {name}": calling("fcntl", 0, command, 0) for name, command in FCNTLS.items()},
    **{f"prctl {name}": calling("prctl", option, 0, 0, 0, 0) for name, option in PRCTLS.items()},
    **{f"clone {name}": starting("clone", flags, 0, 0, 0, 0) for name, flags in CLONES.items()},
    **{f"map shared memory, {name}": calling("mmap", 0, 4096, 3, flags, -1, 0) for name, flags in MAPS.items()},
    "map a file for all": lambda folder: call("mmap", 0, 4096, 1, 1, opens(folder / "kept", os.O_RDONLY), 0),
    "map the zero device for all": lambda _: call("mmap", 0, 4096, 1, 1, opens("/dev/zero", os.O_RDONLY), 0),
    **{f"{name} {whom}": signalling(name, pid)
       for name in ("kill", "tgkill", "tkill") for whom, pid in SIGNALLED.items()},
    "the parent's affinity": lambda _: call("sched_setaffinity", os.getppid(), 8, b"\xff" * 8),
    "the parent's limits": lambda _: call("prlimit64", os.getppid(), 7, bytes(16), 0),
    "its own limits": calling("prlimit64", 0, 7, b"\xff" * 16, 0),
    "limits at an address with no lower half": calling("prlimit64", 0, 7, 1 << 32, 0),
    **{f"openat {how}": opening("kept", flags) for how, flags in WRITES.items()},
    "openat new": opening("new", os.O_WRONLY | os.O_CREAT),
    "openat new for reading": opening("new", os.O_RDONLY | os.O_CREAT),
    "openat without a name": opening(".", os.O_TMPFILE | os.O_RDWR),
    "open for writing": lambda folder: call("open", os.fsencode(folder / "kept"), os.O_RDWR, 0),
    "open truncated": lambda folder: call("open", os.fsencode(folder / "kept"), os.O_TRUNC, 0),
    "openat2 for writing": lambda folder: call(
        "openat2", -100, os.fsencode(folder / "kept"), (1).to_bytes(8, "little") + bytes(16), 24
    ),
    **{name: starting(name) for name in ("fork", "vfork")},
    # -1 is no descriptor, no address and no process.
    **{name: calling(name, -1, -1, -1, -1, -1, -1) for name in OTHERS if name not in ("fork", "vfork", "openat2")},
}  # fmt: skip
_DEVICES = ("tty", "ptmx", "console", "kmsg", "mem", "loop0", "input/event0")
# With Landlock, what it may not read: devices, and what other processes of the user hold.
READS: dict[str, Attempt] = {
    **{
        f"read /dev/{name}": reading(partial(os.path.join, "/dev", name))
        for name in _DEVICES
        if os.path.exists(f"/dev/{name}")
    },
    "read the parent's memory": reading(lambda: f"/proc/{os.getppid()}/mem"),
    "read the parent's variables": reading(lambda: f"/proc/{os.getppid()}/environ"),
    "read the parent's addresses": reading(lambda: f"/proc/{os.getppid()}/maps"),
}


def outcomes(attempts: dict[str, Attempt], folder: Path) -> dict[str, int]:
    """The error number of each attempt; 0 where it did something."""
    found = {}
    for name, attempt in attempts.items():
        try:
            attempt(folder)
            found[name] = 0
        except OSError as error:
            found[name] = error.errno or -1
    return found


def inside(attempts: dict[str, Attempt], folder: Path, *, user: int | None = None) -> dict[str, int]:
    """The outcomes in a captured reader, whose parent runs as `user`."""
    return as_user(
        user,
        lambda: json.loads(
            run_isolated(lambda: json.dumps(outcomes(attempts, folder)).encode(), limits=LIMITS, subject="x")
        ),
    )


def as_user(user: int | None, work: Callable[[], dict[str, int]]) -> dict[str, int]:
    """The result of `work` in a process of its own, since a user cannot be changed back."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if user is not None:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
            os.write(writer, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        text = stream.read()
    os.waitpid(pid, 0)
    found: dict[str, int] = json.loads(text)
    return found
