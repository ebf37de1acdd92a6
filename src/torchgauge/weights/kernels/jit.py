"""Compilation of kernels: without the GIL, once per machine, cached on disk.

Only kernels called from Python (`entry`) are cached; their callees are part of them. The process that compiles a kernel
may run the callees' own code, so the last bits of its sums can differ from those of later processes.

The cache of an entry depends on its own file only: after a change in a kernel that it calls, clear `__pycache__`.

An isolated reader (`isolation`) cannot write the cache, and code that it wrote could not be trusted: it asks its parent
to compile, by the name of the kernel and the types of its arguments, and loads the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any, TypeVar, cast

from numba import njit, types
from numba.core.errors import NumbaError

from torchgauge.isolation import ask_parent, is_isolated
from torchgauge.weights.kernels.numba_settings import kernel_cache

if TYPE_CHECKING:
    from numba.core.base import BaseContext
    from numba.core.caching import FunctionCache

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

# Sums may be reordered, which allows vector instructions; NaN and inf keep their meaning.
REORDERED = frozenset({"reassoc", "nsz", "contract", "arcp"})
# The same for values that are known to be finite.
FINITE = REORDERED | {"nnan", "ninf"}

# The cached kernels, by the name that a reader requests them by.
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


# A type as data: its name, or a list of the types in a tuple.
TypeName = str | list["TypeName"]
# Kernels that an isolated reader has loaded. Its parent loads them too, so that the next reader starts with them.
LOADED: list[tuple[str, list[TypeName]]] = []


def compile_entry(name: str, argument_types: list[TypeName]) -> None:
    """Compile a kernel for these types into the cache. Names that are not in the tables and types that a kernel does
    not take are ignored: a reader that sends them does not find the kernel."""
    try:
        kernel, signature = _ENTRIES[name], tuple(map(_named_type, argument_types))
        kernel.compile(signature)
    except (KeyError, TypeError, RecursionError, NumbaError):
        return


def _named_type(name: TypeName) -> types.Type:
    return types.BaseTuple.from_types(tuple(map(_named_type, name))) if isinstance(name, list) else _types()[name]


def _name_of(kind: types.Type) -> TypeName:
    return [_name_of(part) for part in kind.types] if isinstance(kind, types.BaseTuple) else str(kind)


@cache
def _types() -> dict[str, types.Type]:
    """All argument types of kernels by name: scalars, and arrays of them."""
    scalars = [types.boolean, *types.integer_domain, *types.real_domain]
    arrays = [
        types.Array(scalar, dimensions, layout, readonly=readonly)
        for scalar, dimensions, layout, readonly in product(scalars, (1, 2, 3), "CFA", (False, True))
    ]
    return {str(kind): kind for kind in (*scalars, *arrays)}


def _kept(function: Kernel, *, fastmath: bool | set[str]) -> Kernel:
    kernel = _compiled(function, fastmath=fastmath)
    try:
        cache = kernel_cache(function)
    except RuntimeError:
        # Neither the package folder nor the user's cache folder is writable and private: every process compiles anew.
        return kernel
    name = f"{function.__module__}.{function.__qualname__}"
    _ENTRIES[name] = kernel
    dispatcher: Any = kernel
    dispatcher._cache = _ParentCompiles(name, cache)
    return kernel


class _ParentCompiles:
    """numba's cache of a kernel. In an isolated reader, missing kernels are compiled by the parent."""

    def __init__(self, name: str, cache: FunctionCache) -> None:
        self._name, self._cache = name, cache

    def load_overload(self, signature: Sequence[types.Type], context: BaseContext) -> object:
        overload = self._cache.load_overload(signature, context)
        if is_isolated():
            names = [_name_of(kind) for kind in signature]
            LOADED.append((self._name, names))
            if overload is None:
                ask_parent("compile", kernel=self._name, types=names)
                overload = self._cache.load_overload(signature, context)
        return overload

    def save_overload(self, signature: Sequence[types.Type], data: object) -> None:
        with suppress(OSError):  # not writable: the kernel stays in memory
            self._cache.save_overload(signature, data)

    def __getattr__(self, name: str) -> object:
        return getattr(self._cache, name)


def _compiled(function: Kernel, *, fastmath: bool | set[str]) -> Kernel:
    return cast(Kernel, njit(function, nogil=True, fastmath=fastmath, error_model="numpy"))
