"""New Python processes, which import modules from where this one does, and not from the working folder.

`python -c` and `python -m` put the working folder first on the path of modules: a file there called `pickle.py` would
be imported in place of Python's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

# Python's variable for "the working folder and that of a script are not on the path", which child processes inherit.
_SAFE_PATH = "PYTHONSAFEPATH"


def python_command(*arguments: str) -> list[str]:
    """The command that starts an interpreter with these arguments."""
    return [sys.executable, "-P", *arguments]


def python_environment(**changes: str) -> dict[str, str]:
    """The environment of a new interpreter: the path of this one without relative entries. An interactive one imports
    from the working folder, which comes last in the new one: modules that the user imported from there are found."""
    places = [*filter(os.path.isabs, sys.path), *([os.getcwd()] if "" in sys.path else [])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(places), _SAFE_PATH: "1"} | changes


_lock = Lock()
_blocks: list[object] = []  # those that are running, in all threads
_before: str | None = None


@contextmanager
def safe_path_of_children() -> Iterator[None]:
    """For libraries that start interpreters themselves."""
    global _before
    block = object()
    with _lock:
        if not _blocks:
            _before, os.environ[_SAFE_PATH] = os.environ.get(_SAFE_PATH), "1"
        _blocks.append(block)
    try:
        yield
    finally:
        with _lock:
            _blocks.remove(block)
            if not _blocks and _before is None:
                os.environ.pop(_SAFE_PATH, None)
            elif not _blocks and _before is not None:
                os.environ[_SAFE_PATH] = _before
