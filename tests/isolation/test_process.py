"""The reader's memory and time, how it ends, and what its parent does for it."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import sys
import time
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch

from torchgauge import cache
from torchgauge.errors import FormatError, ForwardError, LimitError, TorchgaugeError, UnpicklingWarning, UsageError
from torchgauge.isolation import Limits, Message, ask_parent, is_isolated, limits, limits_for, run_isolated
from torchgauge.measure import thread_count
from torchgauge.source import import_optional

LIMITS = Limits(memory_bytes=200 << 20, time_s=60)


def hold_memory() -> bytes:
    held = []
    while True:
        held.append(bytearray(os.urandom(1) * (4 << 20)))


def loop_forever() -> bytes:
    while True:
        pass


def sleep_forever() -> bytes:
    time.sleep(1e6)
    return b""


def own_pid() -> bytes:
    return f"{os.getpid()} {is_isolated()}".encode()


@pytest.mark.parametrize("fresh", [False, True])
def test_another_process_does_the_work(fresh: bool) -> None:
    pid, isolated = run_isolated(own_pid, limits=LIMITS, subject="x", needs_fresh_process=fresh).split()
    assert (int(pid) != os.getpid(), isolated, is_isolated()) == (True, b"True", False)


def import_wandb() -> bytes:
    return str("wandb" in sys.modules and importlib.util.find_spec("wandb") is None).encode()


def test_wandb_is_not_imported_which_would_make_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    assert run_isolated(import_wandb, limits=LIMITS, subject="x") == b"True"
    assert "wandb" not in sys.modules


def import_in_reader() -> bytes:
    return str(import_optional("writes_when_imported", "a test").SCRATCH.name).encode()


def import_in_parent() -> None:
    importlib.import_module("writes_when_imported")


@pytest.mark.parametrize("fresh", [False, True])
def test_a_package_that_writes_when_it_is_imported_is_imported_before_rights_are_given_up(
    fresh: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As wandb does, which timm imports where it is installed."""
    code = "import tempfile\n\nSCRATCH = tempfile.TemporaryDirectory('-scratch')\n"
    (tmp_path / "writes_when_imported.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "writes_when_imported", raising=False)
    run = partial(run_isolated, import_in_reader, limits=LIMITS, subject="x", needs_fresh_process=fresh)
    with pytest.raises(TorchgaugeError, match="'writes_when_imported' could not be imported for 'x'"):
        run()
    assert run(importers={"writes_when_imported": import_in_parent}).endswith(b"-scratch")
    monkeypatch.delitem(sys.modules, "writes_when_imported", raising=False)


def test_memory_beyond_the_limit_ends_it_with_the_name_of_the_option() -> None:
    with pytest.raises(LimitError, match=r"'x' needs more than 200 MiB of memory; allow more with --memory-limit"):
        run_isolated(hold_memory, limits=LIMITS, subject="x")


@pytest.mark.parametrize("work", [loop_forever, sleep_forever])
def test_time_beyond_the_limit_ends_it_with_the_name_of_the_option(work: partial[bytes]) -> None:
    with pytest.raises(LimitError, match=r"'x' takes longer than 0.3 s; allow more with --time-limit"):
        run_isolated(work, limits=Limits(1 << 30, 0.3), subject="x")


def test_one_large_allocation_ends_it() -> None:
    with pytest.raises(LimitError, match="--memory-limit"):
        run_isolated(lambda: bytes(40 << 30), limits=LIMITS, subject="x")


def test_a_crash_of_native_code_is_one_sentence() -> None:
    with pytest.raises(TorchgaugeError, match=r"the process that read 'x' ended unexpectedly \(SIGSEGV\)"):
        run_isolated(lambda: ctypes.string_at(0), limits=LIMITS, subject="x")


def test_an_exit_without_a_result_is_one_sentence() -> None:
    def leave() -> bytes:
        os._exit(0)

    with pytest.raises(TorchgaugeError, match=r"ended unexpectedly \(exit status 0\)"):
        run_isolated(leave, limits=LIMITS, subject="x")


@pytest.mark.parametrize(
    "error", [FormatError("bad"), UsageError("wrong"), ForwardError("failed", module="a.b"), TorchgaugeError("no")]
)
def test_errors_arrive_as_what_they_were(error: TorchgaugeError) -> None:
    def fail() -> bytes:
        raise error

    with pytest.raises(type(error)) as caught:
        run_isolated(fail, limits=LIMITS, subject="x")
    assert (type(caught.value), str(caught.value)) == (type(error), str(error))
    assert getattr(caught.value, "module", None) == getattr(error, "module", None)


def test_an_unexpected_error_keeps_its_traceback_as_the_cause() -> None:
    def fail() -> bytes:
        raise ZeroDivisionError("by zero")

    with pytest.raises(TorchgaugeError, match="ZeroDivisionError: by zero") as caught:
        run_isolated(fail, limits=LIMITS, subject="x")
    assert "in fail" in str(caught.value.__cause__)


def test_an_interrupted_reader_interrupts() -> None:
    def interrupted() -> bytes:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_isolated(interrupted, limits=LIMITS, subject="x")


def test_warnings_arrive() -> None:
    import warnings

    def warn() -> bytes:
        warnings.simplefilter("always")
        warnings.warn("beware", UnpicklingWarning, stacklevel=1)
        return b""

    with pytest.warns(UnpicklingWarning, match="beware"):
        run_isolated(warn, limits=LIMITS, subject="x")


def test_text_for_a_stream_without_a_file_is_written_by_the_parent(capsys: pytest.CaptureFixture[str]) -> None:
    def speak() -> bytes:
        print("inside é")
        return b""

    run_isolated(speak, limits=LIMITS, subject="x")
    assert capsys.readouterr().out == "inside é\n"


def test_text_reaches_a_stream_that_was_replaced_by_a_file(tmp_path: Path) -> None:
    def speak() -> bytes:
        print("inside")
        return b""

    with (tmp_path / "out").open("w") as replaced, redirect_stdout(replaced):
        run_isolated(speak, limits=LIMITS, subject="x")
    assert (tmp_path / "out").read_text() == "inside\n"


def test_the_parent_writes_the_files_that_were_asked_for(tmp_path: Path) -> None:
    final, other = tmp_path / "report.json", tmp_path / "other"

    def write() -> bytes:
        cache.replace_file(final, b"content")
        try:
            cache.replace_file(other, b"content")
        except PermissionError as error:
            return str(error).encode()
        return b"written"

    answer = run_isolated(write, limits=LIMITS, subject="x", writable=[final])
    assert (final.read_bytes(), other.exists()) == (b"content", False)
    assert b"not one of the writable files" in answer


def test_a_draft_that_is_not_finished_leaves_nothing(tmp_path: Path) -> None:
    final = tmp_path / "rows.jsonl"

    def begin() -> bytes:
        cache.writer.draft(final).write(b"half")
        return b""

    run_isolated(begin, limits=LIMITS, subject="x", writable=[final])
    assert list(tmp_path.iterdir()) == []


def touch_journal(path: Path, service: str) -> bytes:
    try:
        if service == "append":
            cache.writer.append(path, b"line\n")
        else:
            cache.writer.remove(path)
    except PermissionError:
        return b"refused"
    return b"done"


@pytest.mark.parametrize("service", ["append", "remove"])
def test_a_reader_reaches_only_the_journal_of_its_own_scan(
    service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHGAUGE_CACHE", str(tmp_path))
    own, other = cache.journal_file("a.pt", False), cache.journal_file("b.pt", False)
    other.parent.mkdir()
    for path in (own, other, tmp_path / "kernels-cpu.npz", own.with_suffix(".json")):
        path.write_bytes(b"before\n")
        work = partial(touch_journal, path, service)
        answer = run_isolated(work, limits=LIMITS, subject="x", journal=own)
        assert answer == (b"done" if path == own else b"refused")
        assert path == own or path.read_bytes() == b"before\n"
    assert own.exists() == (service == "append")
    assert run_isolated(partial(touch_journal, own, service), limits=LIMITS, subject="x") == b"refused"


def test_a_reader_cannot_fill_the_disk_through_its_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHGAUGE_CACHE", str(tmp_path))
    monkeypatch.setattr(cache, "JOURNAL_BYTES", 1 << 20)
    own = cache.journal_file("a.pt")

    def fill() -> bytes:
        for count in range(1000):
            try:
                cache.writer.append(own, bytes(10_000))
            except OSError:
                return str(count).encode()
        return b"endless"

    assert run_isolated(fill, limits=LIMITS, subject="x", journal=own) == b"104"
    assert own.stat().st_size <= 1 << 20


def test_a_full_disk_is_the_readers_to_report(tmp_path: Path) -> None:
    def write() -> bytes:
        try:
            cache.replace_file(tmp_path / "missing" / "report", b"x")
        except FileNotFoundError:
            return b"told"
        return b""

    assert run_isolated(write, limits=LIMITS, subject="x", writable=[tmp_path / "missing" / "report"]) == b"told"


@pytest.mark.parametrize("kind", ["import", "eval", "draft.write", "draft.commit"])
def test_a_reader_that_asks_for_what_is_not_offered_is_stopped(kind: str) -> None:
    def misbehave() -> bytes:
        ask_parent(kind, b"x", path="/etc/passwd")
        return b""

    with pytest.raises(TorchgaugeError, match="the process that read 'x' failed: unexpected message"):
        run_isolated(misbehave, limits=LIMITS, subject="x")


def test_a_message_larger_than_the_memory_limit_is_refused() -> None:
    with pytest.raises(LimitError, match="--memory-limit"):
        run_isolated(lambda: bytes(3 << 20), limits=Limits(2 << 20, 60), subject="x")


def test_services_answer_with_data() -> None:
    def double(message: Message) -> dict[str, int]:
        return {"doubled": 2 * int(message.payload)}

    answer = run_isolated(
        lambda: str(ask_parent("row", b"21")["doubled"]).encode(), limits=LIMITS, subject="x",
        services={"row": double},
    )  # fmt: skip
    assert answer == b"42"


def test_the_parents_own_work_is_not_the_readers_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, ahead = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock() + ahead[0])

    def slow(message: Message) -> None:
        ahead[0] += 2 * LIMITS.time_s
        time.sleep(0.1)  # the reader's time is looked at here, and again below

    def work() -> bytes:
        ask_parent("row")
        time.sleep(0.1)
        return b"done"

    assert run_isolated(work, limits=LIMITS, subject="x", services={"row": slow}) == b"done"


def test_torch_computes_in_a_process_forked_after_its_threads_started() -> None:
    """OpenMP's threads do not survive a fork; a parallel region that waits for them would take all the time."""

    def compute() -> bytes:
        return str(int(torch.ones(1 << 20).sum())).encode()

    with thread_count(2):
        assert compute() == run_isolated(compute, limits=LIMITS, subject="x")


def test_default_limits_grow_with_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(b"x")
    large.write_bytes(os.urandom(3 << 20))
    assert limits_for([small], None, None).memory_bytes == 2 << 30
    assert limits_for([small], None, None).time_s == pytest.approx(300)
    monkeypatch.setattr(limits, "LEAST_MEMORY_BYTES", 1 << 20)
    assert limits_for([small], None, None).memory_bytes == 1 << 20
    assert limits_for([large], None, None).memory_bytes == 6 << 20
    assert limits_for([large], None, None).time_s == pytest.approx(300 + (3 << 20) / 20e6)
    assert limits_for([tmp_path], None, None).memory_bytes == 2 * (3 << 20) + 2
    assert limits_for([large], "4GiB", 10) == Limits(4 << 30, 10.0)
    assert limits_for([large], 12345, None).memory_bytes == 12345


def test_holes_and_links_of_a_file_do_not_raise_its_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LEAST_MEMORY_BYTES", 1 << 20)
    sparse, real = tmp_path / "sparse", tmp_path / "folder" / "real"
    real.parent.mkdir()
    real.write_bytes(os.urandom(2 << 20))
    with sparse.open("wb") as file:
        file.truncate(15 * 10**12)
    assert limits_for([sparse], None, None) == Limits(1 << 20, 300.0)
    with sparse.open("ab") as file:
        file.write(b"x")  # one block
    assert limits_for([sparse], None, None).memory_bytes == 1 << 20
    assert limits_for([sparse], None, None).time_s == pytest.approx(300, abs=0.1)
    for number in range(5):
        (real.parent / f"link{number}").symlink_to("real")
        (real.parent / f"dangling{number}").symlink_to("missing")
        os.link(real, real.parent / f"hard{number}")
    (real.parent / "memory").symlink_to("/proc/kcore")
    assert limits_for([real.parent, real], None, None).memory_bytes == 4 << 20


def test_default_limits_have_ceilings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_without_holes", lambda file, facts: facts.st_size)
    with (tmp_path / "large").open("wb") as file:
        file.truncate(15 * 10**12)
    found = limits_for([tmp_path], None, None)
    memory = psutil.virtual_memory().total
    assert (found.time_s, 2 << 30 <= found.memory_bytes < max(memory, (2 << 30) + 1)) == (12 * 3600, True)
    assert limits_for([tmp_path], "40TiB", 1e6) == Limits(40 << 40, 1e6)  # whoever asks for more gets it


@pytest.mark.parametrize(("memory", "seconds"), [("lots", None), ("-1", None), (0, None), (None, 0), (None, -3.0)])
def test_wrong_limits_are_wrong_usage(memory: str | int | None, seconds: float | None) -> None:
    with pytest.raises(UsageError):
        limits_for([], memory, seconds)
