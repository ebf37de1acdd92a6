"""Names of a package that load their module on first use; pausing the cyclic garbage collector."""

from __future__ import annotations

import ast
import gc
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector amid many small allocations that stay alive: walking the whole process takes time
    (0.2 s with transformers loaded). What dies by its last reference dies as ever, so live memory is exact.

    Also a decorator.
    """
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_collecting:
            gc.enable()


def lazy_names(package: str) -> Callable[[str], Any]:
    """The `__getattr__` of a package. Names that its `__init__` imports for type checkers alone, under
    `if TYPE_CHECKING:`, are imported when they are first used."""

    @cache
    def homes() -> dict[str, str]:
        found: dict[str, str] = {}
        for node in ast.parse(Path(str(sys.modules[package].__file__)).read_bytes()).body:
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                imports = [line for line in node.body if isinstance(line, ast.ImportFrom)]
                found |= {alias.name: str(line.module) for line in imports for alias in line.names}
        return found

    def load(name: str) -> Any:
        home = homes().get(name)
        if home is None:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        with collector_paused():  # what an import makes stays, and the objects of torch are many to search
            value = getattr(importlib.import_module(home), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
