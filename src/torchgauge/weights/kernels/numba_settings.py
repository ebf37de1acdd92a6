"""numba, imported without the settings of the working folder, and where it keeps compiled kernels.

numba reads `.numba_config.yaml` in the working folder when it is imported and whenever it compiles. A setting there
names the folder of its cache, whose files are pickles: loading a kernel would run what is in them. A downloaded folder
must not decide this, so numba is imported without the name of that file, and the kernels have a cache of their own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from torchgauge.cache import cache_folder, is_private

_SETTINGS = "numba.core.config"
_FILE = ".numba_config.yaml"


class _WithoutFile(SourceFileLoader):
    """numba's settings, which look for no file: there is none with an empty name."""

    def get_code(self, fullname: str) -> CodeType | None:
        code = super().get_code(fullname)
        if code is None or _FILE not in code.co_consts:
            raise ImportError(f"this numba is not supported: it names {_FILE} in another way", name=fullname)
        return code.replace(co_consts=tuple("" if value == _FILE else value for value in code.co_consts))


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        found = PathFinder.find_spec(fullname, path) if fullname == _SETTINGS else None
        if found is not None and found.origin is not None:
            found.loader = _WithoutFile(fullname, found.origin)
        return found


@contextmanager
def _found_first(finder: MetaPathFinder) -> Iterator[None]:
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def import_numba() -> None:
    """Without effect if the user's program has imported numba, with the settings of its own folder."""
    with _found_first(_Finder()):
        import_module("numba")


def kernel_cache(function: Callable[..., Any]) -> Any:
    """numba's cache of a function, in the first of these folders that nobody else can write to: that of the variable
    NUMBA_CACHE_DIR, that of Python's compiled modules, the user's. RuntimeError if there is none."""
    from numba.core.caching import CompileResultCacheImpl, FunctionCache, InTreeCacheLocator

    class Chosen(InTreeCacheLocator):  # type: ignore[misc]  # numba is not typed
        def get_cache_path(self) -> str:
            return str(self._cache_path)

        @classmethod
        def from_function(cls, py_func: Callable[..., Any], py_file: str) -> Any:
            named, subfolder = os.environ.get("NUMBA_CACHE_DIR", ""), cls.get_suitable_cache_subpath(py_file)
            folders = [Path(named, subfolder)] if os.path.isabs(named) else []
            for folder in (*folders, Path(py_file).parent / "__pycache__", cache_folder() / "kernels" / subfolder):
                found = cls(py_func, py_file)
                found._cache_path = str(folder)
                try:
                    found.ensure_cache_path()
                except OSError:
                    continue
                if is_private(folder):
                    return found
            return None

    class Implementation(CompileResultCacheImpl):  # type: ignore[misc]
        _locator_classes = (Chosen,)

    class Cache(FunctionCache):  # type: ignore[misc]
        _impl_class = Implementation

    return Cache(function)
