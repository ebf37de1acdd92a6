"""One thread for each matrix product: where every core examines a tensor of its own, more only wait for each other."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

# OpenBLAS as numpy's own packages bring it, and as others build it.
_PREFIXES, _SUFFIXES = ("scipy_openblas_", "openblas_"), ("64_", "")


class _Threads(NamedTuple):
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
def _openblas() -> _Threads | None:
    """The library that numpy has loaded: found by its file, so nothing new is loaded."""
    package = Path(np.__file__).parent
    folders = (package.parent / "numpy.libs", package / ".dylibs")
    files = [file for folder in folders if folder.is_dir() for file in folder.glob("*openblas*")]
    return next((found for file in files if (found := _functions(file)) is not None), None)


def _functions(file: Path) -> _Threads | None:
    try:
        library = ctypes.CDLL(str(file))
    except OSError:
        return None
    for prefix in _PREFIXES:
        for suffix in _SUFFIXES:
            get, put = (getattr(library, f"{prefix}{verb}_num_threads{suffix}", None) for verb in ("get", "set"))
            if get is not None and put is not None:
                return _Threads(get, put)
    return None
