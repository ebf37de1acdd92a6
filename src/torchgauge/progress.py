"""Signs of life on stderr for work that takes over a second; nothing where stderr is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer

PATIENCE_S = 1.0


@contextmanager
def stage(name: str, *, shown: bool | None = None) -> Iterator[None]:
    """Show a spinner while the block runs, from `PATIENCE_S` on; `shown` None leaves it to the terminal."""
    if not (sys.stderr.isatty() if shown is None else shown):
        yield
        return
    from rich.console import Console
    from rich.status import Status

    status = Status(f"{name} …", console=Console(stderr=True))
    timer = Timer(PATIENCE_S, status.start)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        status.stop()
