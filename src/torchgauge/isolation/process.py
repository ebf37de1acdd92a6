"""The parent's side: start a reader, watch its memory and time, serve its requests, return its result."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self, TextIO

import psutil

from torchgauge import cache, errors
from torchgauge.errors import LimitError, TorchgaugeError
from torchgauge.interpreter import python_command, python_environment
from torchgauge.isolation.channel import Channel, Message
from torchgauge.isolation.limits import Limits, held_bytes
from torchgauge.isolation.messages import (
    Admission,
    BadMessageError,
    TooLongError,
    TooMuchOutputError,
)
from torchgauge.isolation.reader import NeedsPackageError, close_inherited_files, read, use_one_thread
from torchgauge.isolation.rights import HasThreadsError

Service = Callable[[Message], Mapping[str, Any] | None]

# Memory is written at a few GB/s, so between two checks it grows by at most about 100 MB.
_CHECK_INTERVAL_S = 0.02
# The time that a reader has to end after its result or an interrupt.
_GRACE_S = 2.0
_RESTORED_LINE = "\r\x1b[2K\x1b[?25h"
# What a captured reader must not send to a terminal, which answers some sequences as if the user typed. Reports use
# colours and the line of the progress, erased and redrawn; names in them are escaped before.
_CONTROL = re.compile(
    r"\x1b(?!\[[0-9;]*m|\[[0-2]?K|\[[0-9]*[A-DG]|\[\?25[hl])|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]"
)
_WARNINGS = {kind.__name__: kind for kind in (UserWarning, RuntimeWarning, DeprecationWarning, FutureWarning,
                                              errors.UnpicklingWarning)}  # fmt: skip


def run_isolated(
    work: Callable[[], bytes],
    *,
    limits: Limits,
    subject: str,
    writable: Sequence[str | os.PathLike[str]] = (),
    journal: Path | None = None,
    services: Mapping[str, Service] | None = None,
    importers: Mapping[str, Callable[[], object]] | None = None,
    needs_fresh_process: bool = False,
    is_torch_unused: bool = False,
) -> bytes:
    """The result of `work`, run by a sandboxed process.

    `subject` names the file in errors. `writable` are the files that the parent writes for the reader on request,
    besides the `journal` of its scan; `services` are further requests that the parent serves; `importers` import
    packages whose import writes files, which the reader may not. If the process can fork, `work` may be any callable;
    otherwise, and with `needs_fresh_process`, it is pickled for a new interpreter. `is_torch_unused`: torch has not
    computed anything here yet, so a fork may use its threads.
    """
    waiting, needed_packages = dict(importers or {}), list[Callable[[], object]]()
    stops_threads = False
    while True:
        files = _Files(writable, journal)
        # CUDA does not survive a fork, and the libraries of macOS do not support one.
        torch = sys.modules.get("torch")
        can_fork = sys.platform == "linux" and not (torch is not None and torch.cuda.is_initialized())
        is_forked = can_fork and not needs_fresh_process
        try:
            if is_forked:
                for import_package in needed_packages:
                    import_package()
                reader: _Reader = _Forked(work, limits, is_torch_unused, stops_threads)
            else:
                reader = _Spawned(work, limits, needed_packages)
            with reader:
                return _serve(reader, limits, subject, {**files.services(), "warning": _warn, **(services or {})})
        except NeedsPackageError as needed:
            if needed.package not in waiting:
                raise TorchgaugeError(f"the package '{needed.package}' could not be imported for '{subject}'") from None
            needed_packages.append(waiting.pop(needed.package))
        except HasThreadsError:
            if not is_forked:
                raise TorchgaugeError(f"'{subject}' was not read: an imported package starts threads") from None
            # If stopping torch's threads is not enough, a new interpreter has none.
            stops_threads, needs_fresh_process = True, stops_threads
        finally:
            files.discard_all()


class _Reader:
    """A running reader. `exceeded` is the limit that it was killed for."""

    process: psutil.Process
    channel: Channel

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.exceeded: str | None = None
        self._is_over = Event()
        self._began: float | None = None
        self._served_s = 0.0
        self._serving_since: float | None = None
        self._watch = Thread(target=self._look_after, name="torchgauge-limits", daemon=True)

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        raise NotImplementedError

    def start_clock(self) -> None:
        if not self._watch.is_alive():
            self._baseline, self._began = held_bytes(self.process), time.monotonic()
            self._watch.start()

    def stop_clock(self) -> None:
        """A reader that finishes between two checks of the watch is checked here."""
        if self._is_late():
            self._stop_for("time")

    def _is_late(self) -> bool:
        if self._began is None:
            return False
        return time.monotonic() - self._began - self._served_s > self._limits.time_s

    def _stop_for(self, exceeded: str) -> None:
        self.exceeded = exceeded
        self._signal(signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)

    @contextmanager
    def paused_clock(self) -> Iterator[None]:
        """Exclude the time that the parent takes to serve the reader: compiling a kernel takes seconds, and whoever
        looks at the output may keep a pager open."""
        self._serving_since = began = time.monotonic()
        try:
            yield
        finally:
            self._served_s += time.monotonic() - began
            self._serving_since = None

    def _look_after(self) -> None:
        while not self._is_over.wait(_CHECK_INTERVAL_S):
            try:
                grown = held_bytes(self.process) - self._baseline
            except (psutil.Error, OSError):
                return
            if grown > self._limits.memory_bytes:
                return self._stop_for("memory")
            if self._serving_since is None and self._is_late():
                return self._stop_for("time")

    def end(self, *, politely: bool = False) -> int:
        """Returns the exit status. The reader is killed after a grace period; with `politely`, interrupted first."""
        if politely:
            self._signal(signal.SIGINT)
        patience = time.monotonic() + _GRACE_S
        while (status := self.poll()) is None:
            if time.monotonic() > patience:
                self._signal(signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)
            time.sleep(0.001)
        return status

    def _signal(self, number: signal.Signals) -> None:
        with suppress(psutil.Error, ValueError, OSError):  # it may have ended
            self.process.send_signal(number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        if self._watch.is_alive():
            self._watch.join()
        self.channel.close()
        self.end()


class _Forked(_Reader):
    def __init__(self, work: Callable[[], bytes], limits: Limits, is_torch_unused: bool, stops_threads: bool) -> None:
        """`stops_threads`: while forking, torch has one thread. After `torch.set_num_threads`, torch's hook in a forked
        process starts as many threads as it has here, before the process can drop its rights."""
        super().__init__(limits)
        self.channel, child = Channel.pair(Admission(limits.result_bytes))
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()  # otherwise both processes would write the buffered text
        torch = sys.modules.get("torch")
        threads = torch.get_num_threads() if torch is not None else 1
        if torch is not None and stops_threads:
            torch.set_num_threads(1)
        with warnings.catch_warnings():
            # Python 3.12 warns if there are threads; the reader takes no lock that another thread may hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            try:
                # The parent's objects outlive the reader: a collection would only copy the pages that they are on.
                gc.freeze()
                os.setsid()
                close_inherited_files(child.files)

                def work_with_threads() -> bytes:
                    """OpenMP's threads do not survive a fork: a parallel region would wait for them forever. Setting
                    their number may start a thread, so it is done after the rights are dropped."""
                    if torch is not None and not is_torch_unused:
                        use_one_thread(threads)
                    elif torch is not None and stops_threads:
                        torch.set_num_threads(threads)
                    return work()

                read(child, work_with_threads, limits)
            finally:
                os._exit(0)
        if torch is not None and stops_threads:
            torch.set_num_threads(threads)
        child.close()
        self.process = psutil.Process(pid)
        self._status: int | None = None

    def poll(self) -> int | None:
        if self._status is None:
            pid, status = os.waitpid(self.process.pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status


class _Spawned(_Reader):
    def __init__(self, work: Callable[[], bytes], limits: Limits, importers: Sequence[Callable[[], object]]) -> None:
        super().__init__(limits)
        # Threads that a library starts when it is imported would keep their rights.
        variables = python_environment(OPENBLAS_NUM_THREADS="1")
        command = python_command("-m", "torchgauge.isolation")
        self._popen = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables, start_new_session=True
        )
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self.process = psutil.Process(self._popen.pid)
        self.channel = Channel(self._popen.stdout, self._popen.stdin, Admission(limits.result_bytes))
        self.channel.send("work", pickle.dumps((work, limits, importers)))

    def poll(self) -> int | None:
        return self._popen.poll()


def _serve(reader: _Reader, limits: Limits, subject: str, services: Mapping[str, Service]) -> bytes:
    """Serve requests until the reader returns its result. It is untrusted: only `services` may be requested."""
    try:
        while (message := reader.channel.receive()) is not None:
            if message.kind == "result":
                reader.stop_clock()
                if reader.exceeded is None:
                    return message.payload
                break
            if message.kind in ("error", "crash", "exceeded", "interrupted", "package", "threads"):
                raise _failure(message, limits, subject)
            answer: Mapping[str, Any] | None = None
            if message.kind == "ready":
                reader.start_clock()
                answer = _streams()
            elif message.kind in services:
                with reader.paused_clock():
                    answer = services[message.kind](message)
            else:
                raise BadMessageError(f"a request for {message.kind!r}")
            reader.channel.send("answer", **(answer or {}))
    except KeyboardInterrupt:
        reader.end(politely=True)
        raise
    except TooLongError as error:
        raise LimitError(f"'{subject}' {limits.describe('memory')}") from error
    except TooMuchOutputError as error:
        raise LimitError(f"'{subject}' was not finished: it wrote {error}") from error
    except BadMessageError as error:
        raise unexpected_message(subject, error) from error
    except BrokenPipeError:
        pass  # it ended before it got its answer
    # It ended without a result in time, because of a limit or a crash of native code.
    status = reader.end()
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write(_RESTORED_LINE)
    # The kernel's own limit on CPU time has a signal, except on Windows.
    exceeded = reader.exceeded or ("time" if -status == getattr(signal, "SIGXCPU", None) else None)
    if exceeded is not None:
        raise LimitError(f"'{subject}' {limits.describe(exceeded)}")
    ended = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    raise TorchgaugeError(f"the process that read '{subject}' ended unexpectedly ({ended})")


def unexpected_message(subject: str, error: Exception | str) -> TorchgaugeError:
    """For whatever a reader sends that a reader would not."""
    return TorchgaugeError(f"the process that read '{subject}' failed: unexpected message ({error})")


def _streams() -> dict[str, Any]:
    """What a reader needs to know about the streams that are written here, and the size of the terminal."""
    streams = {
        name: {"is_terminal": _is_terminal(stream), "encoding": getattr(stream, "encoding", None)}
        for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr))
    }
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None and _is_terminal(stream):
            return {"streams": streams, "size": list(os.get_terminal_size(stream.fileno()))}
    return {"streams": streams, "size": None}


def _is_terminal(stream: TextIO | None) -> bool:
    """A program without a console has no streams, and some close them."""
    return stream is not None and not stream.closed and stream.isatty()


def _failure(message: Message, limits: Limits, subject: str) -> BaseException:
    facts = message.facts
    if message.kind == "interrupted":
        return KeyboardInterrupt()
    if message.kind == "package":
        return NeedsPackageError(facts["name"])
    if message.kind == "threads":
        return HasThreadsError()
    if message.kind == "exceeded":
        return LimitError(f"'{subject}' {limits.describe('memory')}")
    if message.kind == "error":
        kind = getattr(errors, facts["type"], TorchgaugeError) if facts["type"] in _ERRORS else TorchgaugeError
        error: TorchgaugeError = kind.__new__(kind)
        TorchgaugeError.__init__(error, *facts["message"].split("\n"))
        for name, value in facts["attributes"].items():
            setattr(error, name, value)
        return error
    failed = TorchgaugeError(f"reading '{subject}' failed: {facts['type']}: {facts['message']}")
    failed.__cause__ = RuntimeError(f"in the process that read it:\n{facts['traceback']}")
    return failed


_ERRORS = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, TorchgaugeError)}


class _Files:
    """Files that the parent writes for a reader: the requested ones, and the journal of its scan."""

    def __init__(self, writable: Sequence[str | os.PathLike[str]], journal: Path | None) -> None:
        self._writable = {str(Path(path)) for path in writable}
        self._own_journal = journal
        self._drafts: dict[str, cache.Draft] = {}

    def services(self) -> dict[str, Service]:
        return {
            kind: partial(_answer_failure, serve)
            for kind, serve in {
                "draft.open": self._open,
                "draft.write": lambda message: self._drafts[message.facts["path"]].write(message.payload),
                "draft.commit": lambda message: self._drafts.pop(message.facts["path"]).commit(),
                "draft.discard": lambda message: self._drafts.pop(message.facts["path"]).discard(),
                "append": lambda message: cache.writer.append(self._journal(message), message.payload),
                "remove": lambda message: cache.writer.remove(self._journal(message)),
                "text": _write_text,
            }.items()
        }

    def discard_all(self) -> None:
        for draft in self._drafts.values():
            draft.discard()

    def _open(self, message: Message) -> None:
        path = message.facts["path"]
        if path not in self._writable:
            raise PermissionError(errno.EACCES, "not one of the writable files")
        self._drafts[path] = cache.writer.draft(Path(path))

    def _journal(self, message: Message) -> Path:
        if self._own_journal is None or message.facts["path"] != str(self._own_journal):
            raise PermissionError(errno.EACCES, "not the journal of this scan")
        return self._own_journal


def _answer_failure(serve: Callable[[Message], None], message: Message) -> Mapping[str, Any] | None:
    """Serve a request; an OSError is returned to the reader, which reports it."""
    try:
        serve(message)
    except OSError as error:
        return {"errno": error.errno or 0, "strerror": error.strerror or str(error)}
    except RuntimeError as error:  # an endless chain of links, before Python 3.13
        return {"errno": 0, "strerror": str(error)}
    except (KeyError, ValueError) as error:
        raise BadMessageError(f"an invalid request '{message.kind}'") from error
    return None


def _write_text(message: Message) -> None:
    stream = sys.stderr if message.facts["stream"] == "stderr" else sys.stdout
    if stream is not None:
        stream.write(_CONTROL.sub("?", message.payload.decode(errors="surrogatepass")))
        stream.flush()  # an error is the reader's to report


def _warn(message: Message) -> None:
    kind = _WARNINGS.get(message.facts["category"], UserWarning)
    warnings.warn(message.facts["message"], kind, stacklevel=5)
