"""A reader that an attacker controls: every system call beyond those that reading needs is refused, on every version of
Landlock and without it, as root and as another user."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.isolation.captured import (
    ATTEMPTS,
    LIMITS,
    NOBODY,
    READS,
    REFUSED,
    as_user,
    call,
    call_number,
    inside,
    number_of,
    opening,
    outcomes,
)
from torchgauge.errors import LimitError, TorchgaugeError
from torchgauge.isolation import Limits, ask_parent, barriers, rights, run_isolated
from torchgauge.isolation.system_calls import ALLOWED

MISSING = [barrier.name for barrier in barriers() if not barrier.is_active]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"this machine lacks {', '.join(MISSING)}")
NEWEST = rights._landlock_version() if not MISSING else 0
USERS = [pytest.param(None, id="this user")]
if sys.platform != "win32" and os.geteuid() == 0:
    USERS.append(pytest.param(NOBODY, id="nobody"))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Open to everybody, so that what refuses is not the file's mode; the folders around it can be entered."""
    around = {place: place.stat().st_mode for place in list(tmp_path.parents)[:2]}
    for place in around:
        place.chmod(0o755)
    tmp_path.chmod(0o777)
    (tmp_path / "kept").write_text("kept" * 1024)
    (tmp_path / "kept").chmod(0o666)
    yield tmp_path
    for place, mode in around.items():
        place.chmod(mode)


@pytest.fixture
def landlock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Landlock as an older kernel has it; 0: none."""
    version: int = request.param
    monkeypatch.setattr(rights, "_landlock_version", lambda: version)
    return version


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("landlock", range(NEWEST + 1), indirect=True)
def test_no_attempt_of_a_captured_reader_succeeds(landlock: int, user: int | None, folder: Path) -> None:
    found = inside(ATTEMPTS, folder, user=user)
    assert len(found) >= 120
    assert {name: errno.errorcode.get(error, error) for name, error in found.items() if error not in REFUSED} == {}
    assert [path.name for path in folder.iterdir()] == ["kept"]
    assert (folder / "kept").read_text() == "kept" * 1024


def test_outside_the_same_attempts_reach_the_kernel(folder: Path) -> None:
    """Otherwise a call that always fails so would prove nothing."""
    # They would harm the process that runs this test.
    unsafe = {"clone a process like vfork", "vfork", "prctl PR_SET_SECCOMP", "kill everybody", "setsid", "setuid",
              "the parent's limits"}  # fmt: skip
    unsafe |= {name for name in ATTEMPTS if name.startswith(("clone a thread", "clone a traced"))}
    safe = {name: attempt for name, attempt in ATTEMPTS.items() if name not in unsafe}
    found = as_user(None, lambda: outcomes(safe, folder))
    reached = {name for name, error in found.items() if error not in REFUSED}
    assert len(reached) >= 120, sorted(set(safe) - reached)


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("landlock", range(1, NEWEST + 1), indirect=True)
def test_devices_and_processes_are_not_read(landlock: int, user: int | None, folder: Path) -> None:
    found = inside(READS, folder, user=user)
    # Without a terminal there is nothing to open; an absent device is refused by its driver.
    assert {name for name, error in found.items() if error == 0} == set()


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("landlock", range(1, NEWEST + 1), indirect=True)
def test_landlock_alone_guards_the_files(
    landlock: int, user: int | None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rights, "_no_seccomp", lambda: "switched off for a test")
    guarded = {
        name: attempt for name, attempt in ATTEMPTS.items()
        if name.startswith(("openat", "open for")) and not ("while reading" in name and landlock < 3)
    }  # fmt: skip
    found = inside(guarded, folder, user=user)
    # A file system without unnamed files says so first.
    assert {name for name, error in found.items() if error not in (*REFUSED, errno.EOPNOTSUPP)} == set()
    assert [path.name for path in folder.iterdir()] == ["kept"]


def test_every_other_number_is_refused() -> None:
    """Those of calls that no kernel has yet among them."""
    # No filter is asked about uretprobe and uprobe (x86-64): they end a process that calls them itself.
    allowed = {number_of(name) for name in ALLOWED} | {335, 336}

    def try_all() -> bytes:
        reached = []
        for number in (*range(700), *(0x40000000 | number for number in range(600)), 1 << 20, (1 << 31) - 1):
            if number not in allowed:
                try:
                    call_number(number, -1, -1, -1, -1, -1, -1)
                    reached.append(number)
                except OSError as error:
                    if error.errno not in (errno.EPERM, errno.ENOSYS):
                        reached.append(number)
        return repr(reached).encode()

    assert run_isolated(try_all, limits=LIMITS, subject="x") == b"[]"


def test_what_a_reader_needs_is_allowed(folder: Path) -> None:
    def need() -> bytes:
        with (folder / "kept").open("rb") as stream:
            assert stream.isatty() is False
            assert mmap.mmap(stream.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)[:4] == b"kept"
        assert call("kill", os.getpid(), 0) == call("tgkill", os.getpid(), os.getpid(), 0) == 0
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 0
        assert os.open("/dev/urandom", os.O_RDONLY) > 0
        assert len(os.sched_getaffinity(0)) > 0
        os.sched_setaffinity(0, os.sched_getaffinity(0))
        thread = threading.Thread(target=time.sleep, args=(0.01,))
        thread.start()
        thread.join()
        return b"done"

    assert run_isolated(need, limits=LIMITS, subject="x") == b"done"


def test_memory_that_is_not_resident_counts() -> None:
    """Page tables of untouched memory, and what the kernel keeps for threads."""
    limits = Limits(memory_bytes=64 << 20, time_s=120)

    def fill_page_tables() -> bytes:
        size, step = 1 << 37, 1 << 21
        start = call("mmap", 0, size, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, -1, 0)
        for place in range(start, start + size, step):
            ctypes.string_at(place, 1)
        time.sleep(60)
        return b""

    def start_threads() -> bytes:
        threading.stack_size(64 << 10)
        for _ in range(4000):
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        time.sleep(60)
        return b""

    for work in (fill_page_tables, start_threads):
        with pytest.raises(LimitError, match="--memory-limit"):
            run_isolated(work, limits=limits, subject="x")


def test_the_limit_of_cpu_time_cannot_be_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent, which watches the clock, may be stopped or overloaded."""
    monkeypatch.setattr("torchgauge.isolation.process._CHECK_INTERVAL_S", 600.0)
    monkeypatch.setattr("torchgauge.isolation.limits._CPU_GRACE_S", 1)

    def ignore() -> bytes:
        assert resource.RLIM_INFINITY not in resource.getrlimit(resource.RLIMIT_CPU)
        signal.signal(signal.SIGXCPU, signal.SIG_IGN)
        while True:
            pass

    with pytest.raises(TorchgaugeError, match="SIGKILL"):
        run_isolated(ignore, limits=Limits(1 << 30, 0.01), subject="x")


def test_no_message_ends_the_time_limit() -> None:
    def claim_to_be_done() -> bytes:
        ask_parent("read")
        return b""

    def print_forever() -> bytes:
        while True:
            print("." * 100, file=sys.stderr)

    with pytest.raises(TorchgaugeError, match="unexpected message"):
        run_isolated(claim_to_be_done, limits=LIMITS, subject="x")
    with pytest.raises(LimitError, match="--time-limit"):
        run_isolated(print_forever, limits=Limits(1 << 30, 0.2), subject="x")


def test_only_the_channel_and_the_null_device_are_open() -> None:
    for fresh in (False, True):
        found = run_isolated(open_files, limits=LIMITS, subject="x", needs_fresh_process=fresh).decode().split()
        assert sorted(found) == ["/dev/null"] * 3 + ["pipe"] * 2


def open_files() -> bytes:
    places = []
    for number in range(100):
        try:
            places.append(os.readlink(f"/proc/self/fd/{number}").split(":")[0])
        except OSError:
            continue
    return " ".join(places).encode()


def test_a_file_opened_for_reading_is_not_truncated_where_landlock_does_not_know_of_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rights, "_landlock_version", lambda: 1)
    found = inside({"truncate": opening("kept", os.O_RDONLY | os.O_TRUNC)}, folder)
    assert found["truncate"] in REFUSED
    assert (folder / "kept").stat().st_size == 4096
