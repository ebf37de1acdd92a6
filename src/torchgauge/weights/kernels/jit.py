"""How kernels are compiled: without the interpreter's lock, once for the machine, kept on disk.

Only what Python calls is kept on disk (`entry`); what kernels call is part of them there. The process that compiles a
kernel may run it with its callees' own code, so the last bits of its sums can differ from those of later processes.

The cache of an entry is bound to its own file: after a change in a kernel that it calls, clear `__pycache__`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

# Sums may be reordered, so that they become vectors; NaN and inf keep their meaning.
REORDERED = frozenset({"reassoc", "nsz", "contract", "arcp"})
# The same for values that are known to be finite.
FINITE = REORDERED | {"nnan", "ninf"}


def entry(function: Kernel) -> Kernel:
    return _kept(function, fastmath=False)


def entry_of_finite(function: Kernel) -> Kernel:
    return _kept(function, fastmath=set(FINITE))


def compiled(function: Kernel) -> Kernel:
    return _compiled(function, fastmath=False)


def compiled_sums(function: Kernel) -> Kernel:
    return _compiled(function, fastmath=set(REORDERED))


def compiled_for_finite(function: Kernel) -> Kernel:
    return _compiled(function, fastmath=set(FINITE))


def _kept(function: Kernel, *, fastmath: bool | set[str]) -> Kernel:
    try:
        return _compiled(function, cache=True, fastmath=fastmath)
    except RuntimeError:
        # Neither the package's folder nor the user's cache folder can be written: compiled anew in each process.
        return _compiled(function, fastmath=fastmath)


def _compiled(function: Kernel, *, fastmath: bool | set[str], cache: bool = False) -> Kernel:
    return cast(Kernel, njit(function, nogil=True, cache=cache, fastmath=fastmath, error_model="numpy"))
