"""Work on a few threads: results come in the order of the work, and only so much is under way at a time."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple, Protocol, Self, TypeVar

import numpy as np

from torchgauge.hardware import usable_cores
from torchgauge.weights.reader import Reader

Item = TypeVar("Item")
Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


class Pending(Protocol[Result_co]):
    def done(self) -> bool: ...

    def result(self) -> Result_co: ...


class Pool(Protocol):
    """Where work is done: `work` is a function of a module, and gets the reader and an item."""

    @property
    def ahead(self) -> int:
        """How many items may be under way."""
        ...

    def submit(self, work: Callable[[Reader, Item], Result], item: Item) -> Pending[Result]: ...


class Threads:
    def __init__(self, reader: Reader, threads: int | None = None) -> None:
        self.count = threads or usable_cores() or 1
        self.ahead = 2 * self.count + 2
        self._reader = reader
        self._executor = ThreadPoolExecutor(self.count, thread_name_prefix="torchgauge")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(cancel_futures=True)

    def submit(self, work: Callable[[Reader, Item], Result], item: Item) -> Pending[Result]:
        return self._executor.submit(partial(work, self._reader), item)


def in_order(submit: Callable[[Item], Pending[Result]], items: Iterable[Item], ahead: int) -> Iterator[Result]:
    """The results in the order of the items. `items` is asked for more only while there is room."""
    pending: deque[Pending[Result]] = deque()
    for item in items:
        pending.append(submit(item))
        while pending and (len(pending) >= ahead or pending[0].done()):
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


# OpenBLAS as numpy's own packages bring it, and as others build it.
_PREFIXES, _SUFFIXES = ("scipy_openblas_", "openblas_"), ("64_", "")


class _OpenBlas(NamedTuple):
    get: Callable[[], int]
    set: Callable[[int], None]


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """While the block runs, numpy's products use the thread that calls them; without effect for other libraries."""
    threads = _openblas()
    if threads is None:
        yield
        return
    before = threads.get()
    threads.set(1)
    try:
        yield
    finally:
        threads.set(before)


@cache
def _openblas() -> _OpenBlas | None:
    """The library that numpy has loaded: found by its file, so nothing new is loaded."""
    package = Path(np.__file__).parent
    folders = (package.parent / "numpy.libs", package / ".dylibs")
    files = [file for folder in folders if folder.is_dir() for file in folder.glob("*openblas*")]
    return next((found for file in files if (found := _functions(file)) is not None), None)


def _functions(file: Path) -> _OpenBlas | None:
    try:
        library = ctypes.CDLL(str(file))
    except OSError:
        return None
    for prefix in _PREFIXES:
        for suffix in _SUFFIXES:
            get, put = (getattr(library, f"{prefix}{verb}_num_threads{suffix}", None) for verb in ("get", "set"))
            if get is not None and put is not None:
                return _OpenBlas(get, put)
    return None
