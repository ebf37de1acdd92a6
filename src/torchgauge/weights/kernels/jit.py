"""How kernels are compiled: without the interpreter's lock, once for the machine, kept on disk.

The cache of a kernel is bound to its own file: after a change in a kernel that others call, clear `__pycache__`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

# Sums may be reordered, so that they become vectors; NaN and inf keep their meaning.
REORDERED = frozenset({"reassoc", "nsz", "contract", "arcp"})


def compiled(function: Kernel) -> Kernel:
    return _compiled(function, fastmath=False)


def compiled_sums(function: Kernel) -> Kernel:
    return _compiled(function, fastmath=set(REORDERED))


def _compiled(function: Kernel, *, fastmath: bool | set[str]) -> Kernel:
    try:
        return cast(Kernel, njit(function, nogil=True, cache=True, fastmath=fastmath, error_model="numpy"))
    except RuntimeError:
        # Neither the package's folder nor the user's cache folder can be written: compiled anew in each process.
        return cast(Kernel, njit(function, nogil=True, fastmath=fastmath, error_model="numpy"))
