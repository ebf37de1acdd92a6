"""Names of a package that load their module on first use."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_names(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package. `homes`: the module that defines names, by its name below the package."""
    home_of = {name: f"{package}.{home}" for home, names in homes.items() for name in names}

    def load(name: str) -> Any:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        is_collecting = gc.isenabled()
        gc.disable()  # what an import makes stays, and the objects of torch are many to search
        try:
            value = getattr(importlib.import_module(home), name)
        finally:
            if is_collecting:
                gc.enable()
        setattr(sys.modules[package], name, value)
        return value

    return load
