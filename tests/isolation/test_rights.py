"""A payload that does run inside the isolation: it cannot write, connect, start processes or touch other processes."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchgauge.isolation import Limits, barriers, run_isolated

X86 = os.uname().machine == "x86_64"  # the numbers of system calls differ
LIMITS = Limits(memory_bytes=1 << 30, time_s=60)
MISSING = [barrier.name for barrier in barriers() if not barrier.is_active]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"this machine lacks {', '.join(MISSING)}")


def attempt(payload: Callable[[], Any]) -> str:
    """What the payload came to inside: its result, or the error that stopped it."""

    def work() -> bytes:
        try:
            return json.dumps({"done": repr(payload())}).encode()
        except OSError as error:
            return json.dumps({"errno": error.errno}).encode()

    answer = json.loads(run_isolated(work, limits=LIMITS, subject="payload"))
    return "refused" if "errno" in answer else str(answer["done"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "kept").write_text("kept")
    (tmp_path / "inner").mkdir()
    (tmp_path / "program").write_text("#!/bin/sh\ntrue\n")
    (tmp_path / "program").chmod(0o755)
    return tmp_path


def fork_and_wait() -> int:
    child = os.fork()
    if child == 0:
        os._exit(0)
    return os.waitpid(child, 0)[1]


def raw_call(number: int, *arguments: Any) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    answer = int(libc.syscall(number, *arguments))
    if answer < 0:
        raise OSError(ctypes.get_errno(), "system call")
    return answer


PAYLOADS: dict[str, Callable[[Path], Any]] = {
    "write a new file": lambda folder: (folder / "canary").write_text("x"),
    "overwrite a file": lambda folder: (folder / "kept").write_text("x"),
    "append to a file": lambda folder: (folder / "kept").open("a"),
    "open for reading and writing": lambda folder: os.open(folder / "kept", os.O_RDWR),
    "truncate": lambda folder: os.truncate(folder / "kept", 0),
    "remove": lambda folder: (folder / "kept").unlink(),
    "rename": lambda folder: (folder / "kept").rename(folder / "moved"),
    "hard link": lambda folder: os.link(folder / "kept", folder / "linked"),
    "symbolic link": lambda folder: (folder / "link").symlink_to("kept"),
    "make a folder": lambda folder: (folder / "made").mkdir(),
    "remove a folder": lambda folder: (folder / "inner").rmdir(),
    "make a pipe": lambda folder: os.mkfifo(folder / "pipe"),
    "change the mode": lambda folder: (folder / "kept").chmod(0o777),
    "change the owner": lambda folder: os.chown(folder / "kept", os.getuid(), os.getgid()),
    "change the times": lambda folder: os.utime(folder / "kept", (0, 0)),
    "set an attribute": lambda folder: os.setxattr(folder / "kept", "user.canary", b"x"),
    "write in /tmp": lambda _: Path("/tmp/torchgauge-canary").write_text("x"),
    "write in /dev/shm": lambda _: Path("/dev/shm/torchgauge-canary").write_text("x"),
    "write to the parent's memory": lambda _: os.open(f"/proc/{os.getppid()}/mem", os.O_RDWR),
    "TCP": lambda _: socket.create_connection(("127.0.0.1", 9), timeout=1),
    "UDP": lambda _: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9)),
    "listen": lambda _: socket.create_server(("127.0.0.1", 0)),
    "Unix socket": lambda _: socket.socket(socket.AF_UNIX),
    "socket pair": lambda _: socket.socketpair(),
    "a program": lambda folder: subprocess.run([folder / "program"], check=True),
    "a shell": lambda _: os.posix_spawn("/bin/sh", ["sh", "-c", "true"], {}),
    "replace this program": lambda folder: os.execv(folder / "program", ["program"]),
    "fork": lambda _: fork_and_wait(),
    "signal the parent": lambda _: os.kill(os.getppid(), 0),
    "signal everybody": lambda _: os.kill(-1, 0),
    "trace the parent": lambda _: raw_call(101 if X86 else 117, 16, os.getppid(), 0, 0),
    "io_uring": lambda _: raw_call(425, 8, ctypes.create_string_buffer(256)),
    "new namespaces": lambda _: raw_call(272 if X86 else 97, 0x10000000),
    "kernel programs": lambda _: raw_call(321 if X86 else 280, 0, None, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", PAYLOADS)
def test_a_payload_inside_is_refused(name: str, folder: Path) -> None:
    before = sorted(path.name for path in folder.iterdir())
    assert attempt(lambda: PAYLOADS[name](folder)) == "refused"
    assert sorted(path.name for path in folder.iterdir()) == before
    assert (folder / "kept").read_text() == "kept"


@pytest.mark.parametrize("name", [name for name in PAYLOADS if name not in ("trace the parent", "io_uring",
                                  "new namespaces", "kernel programs", "write to the parent's memory",
                                  "signal everybody", "write in /tmp", "write in /dev/shm", "replace this program",
                                  "UDP", "TCP")])  # fmt: skip
def test_the_same_payload_does_something_outside(name: str, folder: Path) -> None:
    """Else a payload that always fails would prove nothing."""
    if name == "set an attribute":
        try:
            PAYLOADS[name](folder)
        except OSError:
            pytest.skip("this file system keeps no attributes")
    if name == "signal the parent":  # of a child of this process: whoever started the tests may be another user
        child = os.fork()
        if child == 0:
            try:
                PAYLOADS[name](folder)
            finally:
                os._exit(sys.exc_info()[0] is not None)
        assert os.waitpid(child, 0)[1] == 0
        return
    result = PAYLOADS[name](folder)
    for opened in result if isinstance(result, tuple) else (result,):
        if hasattr(opened, "close"):
            opened.close()


def test_limits_cannot_be_raised_inside() -> None:
    def raise_them() -> str:
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (1 << 30, 1 << 30))
        except (OSError, ValueError):
            return "refused"
        return "raised"

    assert attempt(raise_them) == "'refused'"


def test_reading_and_threads_still_work(folder: Path) -> None:
    def read_in_a_thread() -> str:
        texts: list[str] = []
        thread = threading.Thread(target=lambda: texts.append((folder / "kept").read_text()))
        thread.start()
        thread.join()
        return texts[0]

    assert attempt(read_in_a_thread) == "'kept'"


def test_a_thread_inside_is_bound_too(folder: Path) -> None:
    def write_in_a_thread() -> str:
        outcomes: list[str] = []

        def write() -> None:
            try:
                (folder / "canary").write_text("x")
            except OSError:
                outcomes.append("refused")

        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
        return outcomes[0]

    assert attempt(write_in_a_thread) == "'refused'"
    assert not (folder / "canary").exists()


def test_files_of_the_parent_are_closed_inside(folder: Path) -> None:
    with (folder / "kept").open("r+") as own:
        number = own.fileno()
        assert attempt(lambda: os.write(number, b"canary")) == "refused"
    assert (folder / "kept").read_text() == "kept"


def test_the_parent_keeps_its_rights(folder: Path) -> None:
    assert attempt(lambda: 1) == "1"
    (folder / "written").write_text("x")
    assert subprocess.run([folder / "program"], check=True).returncode == 0
    os.kill(os.getpid(), signal.SIG_BLOCK)
