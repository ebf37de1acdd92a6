"""The reader's side: a process that drops its rights, does its work and returns bytes."""

from __future__ import annotations

import io
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torchgauge import cache
from torchgauge.errors import TorchgaugeError
from torchgauge.isolation.channel import Channel
from torchgauge.isolation.limits import Limits, limit_own_resources
from torchgauge.isolation.messages import ERROR_ATTRIBUTES, PIECE_BYTES, TEXT_CHARACTERS
from torchgauge.isolation.rights import HasThreadsError, drop_rights, end_with_parent, reuse_freed_memory

_BUFFERED_CHARACTERS = 1 << 16

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


def read(channel: Channel, work: Callable[[], bytes], limits: Limits) -> None:
    """Drop the rights, do the work and send its result or its error."""
    global _channel
    _channel = channel

    def forward_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        ask_parent("warning", category=category.__name__, message=_cut(str(message)))

    try:
        end_with_parent()
        cache.writer = _RemoteWriter(channel)
        warnings.showwarning = forward_warning
        # torch looks for GPUs, which are hidden from this process.
        warnings.filterwarnings("ignore", "CUDA initialization")
        # A CUDA driver cannot start without rights: tensors are never on a real GPU here. The second variable makes
        # torch count GPUs without the driver.
        os.environ |= {"CUDA_VISIBLE_DEVICES": "", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
        # It makes a temporary folder when transformers imports it; nothing is logged here.
        sys.modules.setdefault("wandb", None)  # type: ignore[arg-type]
        tempfile.gettempdir()  # determined by writing a file; libraries need it when they are imported
        _forward_text(channel, channel.ask("ready"))
        limit_own_resources(limits)
        drop_rights()
        reuse_freed_memory()
        result = work()
        sys.stdout.flush()
        sys.stderr.flush()
        channel.send("result", result)
    except TorchgaugeError as error:
        held = {name: _cut(value) for name, value in vars(error).items() if isinstance(value, str)}
        held = {name: held[name] for name in ERROR_ATTRIBUTES & held.keys()}
        channel.send("error", type=type(error).__name__, message=_cut(str(error)), attributes=held)
    except KeyboardInterrupt:
        channel.send("interrupted")
    except NeedsPackageError as needed:
        channel.send("package", name=needed.package)
    except HasThreadsError:
        channel.send("threads")
    except MemoryError:
        channel.send("exceeded")
    except BaseException as error:
        text = "".join(traceback.format_exception(error))
        channel.send("crash", type=type(error).__name__, message=_cut(str(error)), traceback=_cut(text))


def _cut(text: str) -> str:
    """The parent refuses longer texts. The end of a traceback says where it was."""
    half = TEXT_CHARACTERS // 2
    return text if len(text) <= TEXT_CHARACTERS else f"{text[:half]} … {text[2 - half :]}"


def close_inherited_files(kept: tuple[int, ...]) -> None:
    """Close the parent's files, sockets, pipes and terminals. The standard streams become empty: text is sent to the
    parent, and what native libraries print, which nothing escapes, is lost."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    listing = Path("/proc/self/fd")
    numbers = [int(name) for name in os.listdir(listing)] if listing.exists() else list(range(3, 4096))
    for number in numbers:
        if number > 2 and number not in kept:
            with suppress(OSError):  # the descriptor of the listing itself is already closed
                os.close(number)


def _forward_text(channel: Channel, facts: Mapping[str, Any]) -> None:
    """Let the parent write what this process prints, as wide and as colourful as its streams are."""
    sys.stdout, sys.stderr = (_Forwarded(channel, name, **facts["streams"][name]) for name in ("stdout", "stderr"))
    if facts["size"] is not None and facts["size"][0]:
        # rich and Python look here before they ask a terminal, and so may the user have set it.
        for name, number in zip(("COLUMNS", "LINES"), facts["size"], strict=True):
            os.environ.setdefault(name, str(number))


class _Forwarded(io.TextIOBase):
    """A stream whose text the parent writes: whole lines to a terminal and stderr, larger pieces elsewhere."""

    def __init__(self, channel: Channel, name: str, is_terminal: bool, encoding: str | None) -> None:
        self._channel, self._name = channel, name
        self._is_terminal, self._encoding = is_terminal, encoding
        self._waiting: list[str] = []
        self._size = 0

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding or "utf-8"

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._is_terminal

    def write(self, text: str) -> int:
        self._waiting.append(text)
        self._size += len(text)
        if self._size >= _BUFFERED_CHARACTERS or self._name == "stderr" or (self._is_terminal and "\n" in text):
            self.flush()
        return len(text)

    def flush(self) -> None:
        # Text that cannot be written is lost, not sent again.
        text, self._waiting, self._size = "".join(self._waiting), [], 0
        longest = PIECE_BYTES // 4  # characters take at most four bytes
        for start in range(0, len(text), longest):
            piece = text[start : start + longest].encode(errors="surrogatepass")
            self._channel.ask("text", piece, stream=self._name)


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
        for start in range(0, len(data), PIECE_BYTES):
            self._channel.ask("draft.write", data[start : start + PIECE_BYTES], path=self._path)

    def commit(self) -> None:
        self._channel.ask("draft.commit", path=self._path)

    def discard(self) -> None:
        self._channel.ask("draft.discard", path=self._path)
