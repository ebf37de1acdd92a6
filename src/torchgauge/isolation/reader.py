"""The reader's side: a process that drops its rights, does its work and returns bytes."""

from __future__ import annotations

import io
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from torchgauge import cache
from torchgauge.errors import TorchgaugeError
from torchgauge.isolation.channel import Channel
from torchgauge.isolation.limits import Limits, limit_own_resources
from torchgauge.isolation.rights import HasThreadsError, drop_rights, end_with_parent, reuse_freed_memory

_channel: Channel | None = None
_threads_of_caller: int | None = None


class NeedsPackageError(BaseException):
    """A package writes files when it is imported (a temporary folder, a cache), which a reader may not: the parent
    imports it and starts another reader. Not an `Exception`, so that no error handler catches it."""

    def __init__(self, package: str) -> None:
        super().__init__(package)
        self.package = package


def use_one_thread(threads_of_caller: int) -> None:
    global _threads_of_caller
    _threads_of_caller = threads_of_caller
    sys.modules["torch"].set_num_threads(1)


def threads_of_caller() -> int | None:
    """The number of threads that torch uses in the parent; None if this process uses as many."""
    return _threads_of_caller


def is_reader() -> bool:
    return _channel is not None


def ask_parent(kind: str, payload: bytes = b"", **facts: Any) -> dict[str, Any]:
    """Request a service that this process may not perform itself."""
    if _channel is None:
        raise RuntimeError("only an isolated reader has a parent to ask")
    return _channel.ask(kind, payload, **facts)


def stop_clock() -> None:
    """Stop the time limit after the file has been read, because a pager may keep printing open."""
    if _channel is not None:
        _channel.ask("read")


def read(channel: Channel, work: Callable[[], bytes], limits: Limits, *, forwards_text: bool) -> None:
    """Drop the rights, do the work and send its result or its error."""
    global _channel
    _channel = channel

    def forward_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        ask_parent("warning", category=category.__name__, message=str(message))

    try:
        end_with_parent()
        cache.writer = _RemoteWriter(channel)
        if forwards_text or not _has_file(sys.stdout):
            sys.stdout = _Forwarded(channel, "stdout")
        if forwards_text or not _has_file(sys.stderr):
            sys.stderr = _Forwarded(channel, "stderr")
        warnings.showwarning = forward_warning
        # torch looks for GPUs, which are hidden from this process.
        warnings.filterwarnings("ignore", "CUDA initialization")
        # A CUDA driver cannot start without rights: tensors are never on a real GPU here. The second variable makes
        # torch count GPUs without the driver.
        os.environ |= {"CUDA_VISIBLE_DEVICES": "", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
        # It makes a temporary folder when transformers imports it; nothing is logged here.
        sys.modules.setdefault("wandb", None)  # type: ignore[arg-type]
        tempfile.gettempdir()  # determined by writing a file; libraries need it when they are imported
        channel.ask("ready")
        limit_own_resources(limits)
        drop_rights()
        reuse_freed_memory()
        result = work()
        sys.stdout.flush()
        channel.send("result", result)
    except TorchgaugeError as error:
        facts = {name: value for name, value in vars(error).items() if isinstance(value, str)}
        channel.send("error", type=type(error).__name__, message=str(error), attributes=facts)
    except KeyboardInterrupt:
        channel.send("interrupted")
    except NeedsPackageError as needed:
        channel.send("package", name=needed.package)
    except HasThreadsError:
        channel.send("threads")
    except MemoryError:
        channel.send("exceeded", limit="memory")
    except BaseException as error:
        text = "".join(traceback.format_exception(error))
        channel.send("crash", type=type(error).__name__, message=str(error), traceback=text)
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # the other end may be closed
                stream.flush()


def close_inherited_files(kept: tuple[int, ...]) -> None:
    """Close the parent's files, sockets and pipes; stdin becomes empty, stdout and stderr stay open."""
    kept += tuple(stream.fileno() for stream in (sys.stdout, sys.stderr) if _has_file(stream))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    listing = Path("/proc/self/fd")
    numbers = [int(name) for name in os.listdir(listing)] if listing.exists() else list(range(3, 4096))
    for number in numbers:
        if number > 2 and number not in kept:
            with suppress(OSError):  # the descriptor of the listing itself is already closed
                os.close(number)


def _has_file(stream: TextIO) -> bool:
    """Whether the stream writes to a file. A notebook's stream needs threads and sockets of its process."""
    try:
        return isinstance(stream, io.TextIOWrapper) and stream.fileno() >= 0
    except (OSError, ValueError):
        return False


class _Forwarded(io.TextIOBase):
    """A stream whose text the parent writes."""

    def __init__(self, channel: Channel, name: str) -> None:
        self._channel, self._name = channel, name

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if text:
            self._channel.ask("text", text.encode(errors="surrogatepass"), stream=self._name)
        return len(text)


class _RemoteWriter:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def draft(self, final: Path) -> cache.Draft:
        return _RemoteDraft(self._channel, final)

    def append(self, path: Path, data: bytes) -> None:
        self._channel.ask("append", data, path=str(path))

    def remove(self, path: Path) -> None:
        self._channel.ask("remove", path=str(path))


class _RemoteDraft:
    def __init__(self, channel: Channel, final: Path) -> None:
        self._channel, self._path = channel, str(final)
        channel.ask("draft.open", path=self._path)

    def write(self, data: bytes) -> None:
        self._channel.ask("draft.write", data, path=self._path)

    def commit(self) -> None:
        self._channel.ask("draft.commit", path=self._path)

    def discard(self) -> None:
        self._channel.ask("draft.discard", path=self._path)
