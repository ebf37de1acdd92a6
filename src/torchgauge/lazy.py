"""Names of a package that load their module on first use; pausing the cyclic garbage collector."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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


def lazy_names(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package. `homes`: the module that defines names, by its name below the package. They are
    its `__all__`, unless it has one already."""
    home_of = {name: f"{package}.{home}" for home, names in homes.items() for name in names}
    vars(sys.modules[package]).setdefault("__all__", sorted(home_of))

    def load(name: str) -> Any:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        with collector_paused():  # what an import makes stays, and the objects of torch are many to search
            value = getattr(importlib.import_module(home), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
