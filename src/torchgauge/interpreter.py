"""New Python processes, which import modules from where this one does, and never from the working folder.

`python -c` and `python -m` put the working folder first on the path of modules: a file there called `pickle.py` would be
imported in place of Python's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def safe_path_of_children() -> Iterator[None]:
    """For libraries that start interpreters themselves."""
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_SAFE_PATH, None)
        else:
            os.environ[_SAFE_PATH] = before
