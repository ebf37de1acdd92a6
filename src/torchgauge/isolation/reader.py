"""The reader's side: a process that gives up its rights, does its work and hands back bytes."""

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
from torchgauge.isolation.rights import drop_rights, end_with_parent

_channel: Channel | None = None
_threads_of_caller: int | None = None


class NeedsPackageError(BaseException):
    """A package writes when it is imported (a temporary folder, a cache), which a reader may not: the parent, which
    may, imports it and starts another reader. Not an `Exception`: no handler of errors may take it for one."""

    def __init__(self, package: str) -> None:
        super().__init__(package)
        self.package = package


def use_one_thread() -> None:
    global _threads_of_caller
    if (torch := sys.modules.get("torch")) is not None:
        _threads_of_caller = torch.get_num_threads()
        torch.set_num_threads(1)


def threads_of_caller() -> int | None:
    """How many threads torch uses where the result goes; None where this process uses as many."""
    return _threads_of_caller


def is_reader() -> bool:
    return _channel is not None


def ask_parent(kind: str, payload: bytes = b"", **facts: Any) -> dict[str, Any]:
    """What this process may not do, its parent does if it offers that service."""
    if _channel is None:
        raise RuntimeError("only an isolated reader has a parent to ask")
    return _channel.ask(kind, payload, **facts)


def stop_clock() -> None:
    """The file has been read; printing to a pager may take as long as its reader likes."""
    if _channel is not None:
        _channel.ask("read")


def read(channel: Channel, work: Callable[[], bytes], limits: Limits, *, forwards_text: bool) -> None:
    """Do the work without rights and send its bytes, or what went wrong."""
    global _channel
    _channel = channel
    try:
        end_with_parent()
        cache.use_writer(_RemoteWriter(channel))
        if forwards_text or not _has_file(sys.stdout):
            sys.stdout = _Forwarded(channel, "stdout")
        if forwards_text or not _has_file(sys.stderr):
            sys.stderr = _Forwarded(channel, "stderr")
        warnings.showwarning = _forward_warning
        # torch looks for GPUs, which are hidden from this process (see below).
        warnings.filterwarnings("ignore", "CUDA initialization")
        # A CUDA driver cannot start without rights: tensors only pretend to be on a GPU here.
        # The second variable has torch count them without the driver.
        os.environ |= {"CUDA_VISIBLE_DEVICES": "", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
        tempfile.gettempdir()  # found by writing there; libraries ask for its name when they are imported
        channel.ask("ready")
        limit_own_resources(limits)
        drop_rights()
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
    """Files, sockets and pipes of the parent are not the reader's business; stdin is empty, stdout and stderr stay."""
    kept += tuple(stream.fileno() for stream in (sys.stdout, sys.stderr) if _has_file(stream))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    listing = Path("/proc/self/fd")
    numbers = [int(name) for name in os.listdir(listing)] if listing.exists() else list(range(3, 4096))
    for number in numbers:
        if number > 2 and number not in kept:
            with suppress(OSError):  # that of the listing itself is closed already
                os.close(number)


def _has_file(stream: TextIO) -> bool:
    """Whether text reaches a file by itself. A notebook's stream goes through threads and sockets of its process."""
    try:
        return isinstance(stream, io.TextIOWrapper) and stream.fileno() >= 0
    except (OSError, ValueError):
        return False


def _forward_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    ask_parent("warning", category=category.__name__, message=str(message))


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
