"""How kernels are compiled: without the interpreter's lock, once for the machine, kept on disk.

Only what Python calls is kept on disk (`entry`); what kernels call is part of them there. The process that compiles a
kernel may run it with its callees' own code, so the last bits of its sums can differ from those of later processes.

The cache of an entry is bound to its own file: after a change in a kernel that it calls, clear `__pycache__`.

A reader without rights (`isolation`) cannot keep what it compiles, and code that it kept could not be trusted: it asks
its parent to compile, naming the kernel and the types of its arguments, and loads the result.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from itertools import product
from typing import Any, TypeVar, cast

from numba import njit, types

from torchgauge.isolation import ask_parent, is_isolated

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

# Sums may be reordered, so that they become vectors; NaN and inf keep their meaning.
REORDERED = frozenset({"reassoc", "nsz", "contract", "arcp"})
# The same for values that are known to be finite.
FINITE = REORDERED | {"nnan", "ninf"}

# The kernels that are kept on disk, by the name under which a reader asks for them.
_ENTRIES: dict[str, Any] = {}


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


# A type as data: its name, or a list of those in a tuple.
TypeName = str | list["TypeName"]
# What an isolated reader has loaded: its parent loads it too, and the next reader has it from the start.
LOADED: list[tuple[str, list[TypeName]]] = []


def compile_entry(name: str, argument_types: list[TypeName]) -> None:
    """Compile a kernel for these types and keep it on disk; what is not in the tables is left alone."""
    try:
        kernel, signature = _ENTRIES[name], tuple(map(_named_type, argument_types))
    except (KeyError, TypeError, RecursionError):
        return
    kernel.compile(signature)


def _named_type(name: TypeName) -> Any:
    return types.BaseTuple.from_types(tuple(map(_named_type, name))) if isinstance(name, list) else _types()[name]


def _name_of(kind: Any) -> TypeName:
    return [_name_of(part) for part in kind.types] if isinstance(kind, types.BaseTuple) else str(kind)


@cache
def _types() -> dict[str, Any]:
    """Every type that kernels take, by its name: scalars, and arrays of them."""
    scalars = [types.boolean, *types.integer_domain, *types.real_domain]
    arrays = [
        types.Array(scalar, dimensions, layout, readonly=readonly)
        for scalar, dimensions, layout, readonly in product(scalars, (1, 2, 3), "CFA", (False, True))
    ]
    return {str(kind): kind for kind in (*scalars, *arrays)}


def _kept(function: Kernel, *, fastmath: bool | set[str]) -> Kernel:
    try:
        kernel = _compiled(function, cache=True, fastmath=fastmath)
    except RuntimeError:
        # Neither the package's folder nor the user's cache folder can be written: compiled anew in each process.
        return _compiled(function, fastmath=fastmath)
    name = f"{function.__module__}.{function.__qualname__}"
    _ENTRIES[name] = kernel
    dispatcher: Any = kernel
    dispatcher._cache = _ParentCompiles(name, dispatcher._cache)
    return kernel


class _ParentCompiles:
    """numba's cache of a kernel. In a reader without rights, what it lacks is compiled by the parent."""

    def __init__(self, name: str, cache: Any) -> None:
        self._name, self._cache = name, cache

    def load_overload(self, signature: Any, context: Any) -> Any:
        found = self._cache.load_overload(signature, context)
        if is_isolated():
            names = [_name_of(kind) for kind in signature]
            LOADED.append((self._name, names))
            if found is None:
                ask_parent("compile", kernel=self._name, types=names)
                found = self._cache.load_overload(signature, context)
        return found

    def save_overload(self, signature: Any, data: Any) -> None:
        with suppress(OSError):  # not where this process may write: it stays in memory
            self._cache.save_overload(signature, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)


def _compiled(function: Kernel, *, fastmath: bool | set[str], cache: bool = False) -> Kernel:
    return cast(Kernel, njit(function, nogil=True, cache=cache, fastmath=fastmath, error_model="numpy"))
