"""Signs of life on stderr for work that takes over a second; nothing where stderr is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer

PATIENCE_S = 1.0


Tell = Callable[[int, int, str], None]


@contextmanager
def stage(name: str, *, shown: bool | None = None) -> Iterator[Tell]:
    """Show a spinner while the block runs, from `PATIENCE_S` on; `shown` None leaves it to the terminal.

    The block is given a function that tells the parts done, the parts in all and the name of the current one.
    """
    if not (sys.stderr.isatty() if shown is None else shown):
        yield lambda done, total, part: None
        return
    from rich.console import Console
    from rich.status import Status
    from rich.text import Text

    from torchgauge.report.escape import visible

    status = Status(f"{name} …", console=Console(stderr=True, markup=False))

    def tell(done: int, total: int, part: str) -> None:
        status.update(Text(f"{name}: {visible(part)} ({done:,} of {total:,}) …"))

    timer = Timer(PATIENCE_S, status.start)
    timer.start()
    try:
        yield tell
    finally:
        timer.cancel()
        timer.join()
        status.stop()
