"""Thread pool that delivers results in order with bounded look-ahead."""

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
    """`work` is a module-level function that takes the reader and an item."""

    @property
    def max_pending(self) -> int:
        """The number of items that may be in flight."""
        ...

    def submit(self, work: Callable[[Reader, Item], Result], item: Item) -> Pending[Result]: ...


class Threads:
    def __init__(self, reader: Reader, threads: int | None = None) -> None:
        self.count = threads or usable_cores() or 1
        self.max_pending = 2 * self.count + 2
        self._reader = reader
        self._executor = ThreadPoolExecutor(self.count, thread_name_prefix="torchgauge")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(cancel_futures=True)

    def submit(self, work: Callable[[Reader, Item], Result], item: Item) -> Pending[Result]:
        return self._executor.submit(partial(work, self._reader), item)


def in_order(submit: Callable[[Item], Pending[Result]], items: Iterable[Item], max_pending: int) -> Iterator[Result]:
    """The results in the order of the items, which are consumed only while fewer than `max_pending` are in flight."""
    pending: deque[Pending[Result]] = deque()
    for item in items:
        pending.append(submit(item))
        while pending and (len(pending) >= max_pending or pending[0].done()):
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


class _OpenBlas(NamedTuple):
    get_num_threads: Callable[[], int]
    set_num_threads: Callable[[int], None]


@contextmanager
def single_blas_thread() -> Iterator[None]:
    """Let OpenBLAS compute on the calling thread: every core already works on a tensor, more threads would only wait
    for each other. No effect with other BLAS libraries."""
    blas = _loaded_openblas()
    if blas is None:
        yield
        return
    before = blas.get_num_threads()
    blas.set_num_threads(1)
    try:
        yield
    finally:
        blas.set_num_threads(before)


@cache
def _loaded_openblas() -> _OpenBlas | None:
    """The library that numpy has already loaded, found by its file name: as numpy's wheels name it, or as others do."""
    package = Path(np.__file__).parent
    for folder in (package.parent / "numpy.libs", package / ".dylibs"):
        for file in folder.glob("*openblas*") if folder.is_dir() else ():
            try:
                library = ctypes.CDLL(str(file))
            except OSError:
                continue
            for prefix in ("scipy_openblas_", "openblas_"):
                for suffix in ("64_", ""):
                    get = getattr(library, f"{prefix}get_num_threads{suffix}", None)
                    put = getattr(library, f"{prefix}set_num_threads{suffix}", None)
                    if get is not None and put is not None:
                        return _OpenBlas(get, put)
    return None
