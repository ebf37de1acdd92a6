"""Ctrl-C while the program starts or ends: there is nothing to undo, and nobody wants to read a traceback.

What is imported here is already loaded when Python starts: `signal` would take longer than the rest of this package
needs to get ready.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import sys

_STATUS = 130  # by which shells report Ctrl-C


def end_at_interrupt() -> None:
    """From here on Ctrl-C ends the process at once. Only if torchgauge is the program: another one that imports it
    keeps its own handler, and a job that a shell started in the background ignores Ctrl-C as before."""
    if is_program() and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _end)


def raise_interrupts() -> None:
    """From here on Ctrl-C raises KeyboardInterrupt, so that work is undone."""
    if _signal.getsignal(_signal.SIGINT) is _end:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)


def is_program() -> bool:
    program = sys.argv[0] if sys.argv else ""
    name = os.path.basename(program)
    return name.removesuffix(".exe") == "torchgauge" or program.endswith(os.path.join("torchgauge", "__main__.py"))


def _end(*_: object) -> None:
    os._exit(_STATUS)
