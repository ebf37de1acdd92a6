"""State of the process that building or running a model may change: random generators, imports, the hub; and functions
that torchgauge replaces temporarily."""

from __future__ import annotations

import importlib
import inspect
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import torch


@contextmanager
def rng_untouched() -> Iterator[None]:
    """Restore the global random state of torch, Python and, if loaded, numpy."""
    python_state, torch_state = random.getstate(), torch.get_rng_state()
    # Accessing a CUDA generator would initialise CUDA; generators that are not in use have no state to keep.
    cuda_states = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    mps_state = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    numpy = sys.modules.get("numpy.random")  # if it is not loaded, it will start with a fresh seed
    numpy_state = None if numpy is None else numpy.get_state()
    try:
        yield
    finally:
        random.setstate(python_state)
        torch.set_rng_state(torch_state)
        if cuda_states is not None:
            torch.cuda.set_rng_state_all(cuda_states)
        if mps_state is not None:
            torch.mps.set_rng_state(mps_state)
        if numpy is not None:
            numpy.set_state(numpy_state)


@contextmanager
def hub_offline() -> Iterator[None]:
    """Prevent downloads of weights or kernels from the hub by a constructor or a forward. No effect if
    `huggingface_hub` is not loaded."""
    module = sys.modules.get("huggingface_hub.constants")
    constants = {} if module is None else vars(module)
    before = constants.get("HF_HUB_OFFLINE")
    if before is not None:
        constants["HF_HUB_OFFLINE"] = True
    try:
        yield
    finally:
        if before is not None:
            constants["HF_HUB_OFFLINE"] = before


class _ModulesOf(MetaPathFinder):
    """The top-level modules of a folder, for imports that `applies` accepts."""

    def __init__(self, folder: Path, applies: Callable[[str, ModuleSpec], bool]) -> None:
        self._folder, self._applies = folder, applies

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        found = PathFinder.find_spec(fullname, [str(self._folder)]) if path is None else None
        return found if found is not None and self._applies(fullname, found) else None


@contextmanager
def importable(folder: Path, *named: str) -> Iterator[None]:
    """The modules of a folder can be imported: by its own code, and those that are `named`, before installed packages,
    as for a script; by libraries after them. A `pickle.py` there does not take the place of Python's when torch needs
    it, and packages that only look installed there are not found."""

    def comes_first(name: str, found: ModuleSpec) -> bool:
        is_package_or_file = found.loader is not None  # a folder without `__init__.py` comes last, as for Python
        return is_package_or_file and (name in named or _is_imported_by(folder))

    first, last = _ModulesOf(folder, comes_first), _ModulesOf(folder, lambda name, found: True)
    sys.meta_path[:] = [first, *sys.meta_path, last]
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder not in (first, last)]


def _is_imported_by(folder: Path) -> bool:
    """Whether the import that is running is in a file of this folder, and not in a package installed below it."""
    frame = inspect.currentframe()
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if name != __name__ and name.partition(".")[0] not in ("importlib", "_frozen_importlib"):
            file = Path(frame.f_code.co_filename)
            return file.is_relative_to(folder) and "site-packages" not in file.relative_to(folder).parts
        frame = frame.f_back
    return False


@contextmanager
def arguments_of(script: Path) -> Iterator[None]:
    """In the block, the command line is that of the script without arguments: one that parses it gets its defaults."""
    before = sys.argv
    sys.argv = [str(script)]
    try:
        yield
    finally:
        sys.argv = before


@contextmanager
def pretended_absent(*packages: str) -> Iterator[None]:
    """Make packages that are not imported yet look as if they were not installed. Only for processes that end with
    their task, because a library may remember the result."""
    hidden = {name: None for name in packages if name not in sys.modules}
    sys.modules.update(hidden)  # type: ignore[arg-type]  # None is how the import system marks an absent module
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)


@contextmanager
def replaced_here(place: Any, name: str, replacement: Callable[..., Any]) -> Iterator[None]:
    """In the block, calls of a function of a class or module go to `replacement`, with the original before their
    arguments; those of other threads go to the original."""
    original, owner = getattr(place, name), threading.get_ident()

    def call(*args: object, **kwargs: object) -> Any:  # a function, so that a class binds it
        if threading.get_ident() == owner:
            return replacement(original, *args, **kwargs)
        return original(*args, **kwargs)

    is_own = name in vars(place)
    setattr(place, name, call)
    try:
        yield
    finally:
        if is_own:
            setattr(place, name, original)
        else:
            delattr(place, name)
