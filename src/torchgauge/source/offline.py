"""No network while a model is built from a file, or run: names in the file must not leave the machine."""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

from torchgauge.errors import TargetError
from torchgauge.source.target_check import is_model_path

# The variables of Hugging Face's libraries, and what they make of them when they are imported.
_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
_CONSTANTS = (
    ("huggingface_hub.constants", "HF_HUB_OFFLINE"), ("transformers.utils.hub", "_is_offline_mode"),
    ("datasets.config", "HF_HUB_OFFLINE"), ("datasets.config", "HF_DATASETS_OFFLINE"),
)  # fmt: skip
_FUNCTIONS = ("getaddrinfo", "gethostbyname", "gethostbyname_ex")
_METHODS = ("connect", "connect_ex", "sendto")
_HOST = re.compile(r"https?://([\w.-]+)")

_lock = threading.Lock()
_threads: Counter[int] = Counter()  # those that are offline, by the number of their blocks
_undo = ExitStack()


class _RefusedError(OSError):
    def __init__(self, host: str) -> None:
        super().__init__(f"no network: {host} was asked for while a model file was read or run")
        self.host = host


def offline_for(target: object) -> Any:
    """A block without network if the target is a model file or folder; the user's own code may use the network."""
    is_path = isinstance(target, str | os.PathLike) and is_model_path(os.fspath(target))
    return offline(f"'{target}'") if is_path else nullcontext()


@contextmanager
def offline(subject: str) -> Iterator[None]:
    """A block whose thread has no network. An error in it is a `TargetError` if the network was asked for."""
    thread = threading.get_ident()
    with _lock:
        if not _threads:
            _undo.enter_context(_libraries_offline())
            _undo.enter_context(_sockets_refused())
        _threads[thread] += 1
    try:
        yield
    except Exception as error:
        host = _host_in(error)
        if host is None:
            raise
        raise TargetError(
            f"{subject} asks for the network ({host}): a file is read and run without it, and nothing is downloaded"
        ) from error
    finally:
        with _lock:
            _threads[thread] -= 1
            if not _threads[thread]:
                del _threads[thread]
            if not _threads:
                _undo.close()


def _host_in(error: BaseException | None) -> str | None:
    """The host that the error is about: refused here, or by a library of Hugging Face that is offline."""
    while error is not None:
        if isinstance(error, _RefusedError):
            return error.host
        if type(error).__name__ == "OfflineModeIsEnabled":
            found = _HOST.search(str(error))
            return found[1] if found else "the Hugging Face hub"
        error = error.__cause__ or error.__context__
    return None


@contextmanager
def _libraries_offline() -> Iterator[None]:
    variables = {name: os.environ.get(name) for name in _VARIABLES}
    constants = {place: _constant(*place) for place in _CONSTANTS}
    # What a library that is imported in the block would find after it.
    is_off = any((variables[name] or "").upper() in ("1", "ON", "YES", "TRUE") for name in _VARIABLES[:2])
    os.environ |= dict.fromkeys(_VARIABLES, "1")
    for module, name in _CONSTANTS:
        _set_constant(module, name, True)
    try:
        yield
    finally:
        for name, value in variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        for (module, name), before in constants.items():
            _set_constant(module, name, is_off if before is None else before)


def _constant(module: str, name: str) -> Any:
    return vars(sys.modules[module]).get(name) if sys.modules.get(module) else None


def _set_constant(module: str, name: str, value: Any) -> None:
    if _constant(module, name) is not None:
        vars(sys.modules[module])[name] = value


@contextmanager
def _sockets_refused() -> Iterator[None]:
    """Host names are not looked up and connections not made by threads that are offline; local sockets work."""

    def refusing(function: Callable[..., Any], host_of: Callable[..., str | None]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            host = host_of(*args, **kwargs) if threading.get_ident() in _threads else None
            if host is not None:
                raise _RefusedError(host)
            return function(*args, **kwargs)

        return call

    before = {name: vars(socket)[name] for name in _FUNCTIONS}
    for name, function in before.items():
        vars(socket)[name] = refusing(function, _looked_up)
    for name in _METHODS:  # inherited ones: removing these brings them back
        setattr(socket.socket, name, refusing(getattr(socket.socket, name), _connected))
    try:
        yield
    finally:
        vars(socket).update(before)
        for name in _METHODS:
            delattr(socket.socket, name)


def _looked_up(host: Any, *_: Any, **__: Any) -> str | None:
    return _text(host) if host is not None else None


def _connected(connection: socket.socket, *arguments: Any) -> str | None:
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    address = arguments[-1]  # of `sendto`, the last one too
    return _text(address[0]) if isinstance(address, tuple) and address else "an address"


def _text(host: Any) -> str:
    return host.decode(errors="replace") if isinstance(host, bytes) else str(host)
