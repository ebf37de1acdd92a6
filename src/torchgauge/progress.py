"""Progress on stderr for work that takes over a second; nothing if stderr is not a terminal.

A terminal that cannot move its cursor (TERM=dumb) gets a line for each stage, without animation.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Timer

from torchgauge.units import format_bytes, format_percent, inert_lines, visible

SPINNER_DELAY_S = 1.0
# A scan reports every piece; the line is redrawn at most this often.
REFRESH_S = 0.2
# To the start of the line, and nothing on it.
_CLEAR = "\r\x1b[2K"

# Called with the number of finished parts, the total and the name of the current part.
Progress = Callable[[int, int, str], None]


def _is_shown(shown: bool | None) -> bool:
    """A program without a console (`pythonw`, some services) has no stderr."""
    return sys.stderr is not None and (sys.stderr.isatty() if shown is None else shown)


@contextmanager
def stage(
    name: str, *, shown: bool | None = None, describe: Callable[[int, int, str], str] | None = None
) -> Iterator[Progress]:
    """Show a spinner while the block runs, from `SPINNER_DELAY_S` on; `shown` None leaves it to the terminal.

    The block gets a function to report the number of finished parts, the total and the name of the current part;
    `describe` turns these into a line.
    """
    if not _is_shown(shown):
        yield lambda done, total, part: None
        return
    from rich.console import Console
    from rich.status import Status
    from rich.text import Text

    # `Text`, not a string: a name may hold what rich would take for markup.
    begun, console = Text(f"{visible(name)} …"), Console(stderr=True, markup=False)
    status = Announcement(begun.plain) if is_dumb_terminal() else Status(begun, console=console)

    updated = [0.0]

    def report_progress(done: int, total: int, part: str) -> None:
        if time.monotonic() - updated[0] >= REFRESH_S or done == total:
            updated[0] = time.monotonic()
            line = describe or (lambda done, total, part: f"{name}: {part} ({done:,} of {total:,}) …")
            status.update(Text(line(done, total, visible(part))))

    timer = Timer(SPINNER_DELAY_S, status.start)
    timer.start()
    try:
        yield report_progress
    finally:
        timer.cancel()
        timer.join()
        status.stop()


@contextmanager
def steps(name: str, *, shown: bool | None = None) -> Iterator[Progress]:
    """Like `stage`, but a line is written only when a part begins: an animation would disturb a measurement."""
    if not _is_shown(shown):
        yield lambda done, total, part: None
        return
    before, after = ("", "\n") if is_dumb_terminal() else (_CLEAR, "")

    def report_progress(done: int, total: int, part: str) -> None:
        sys.stderr.write(f"{before}{visible(name)}: {visible(part)} ({done + 1:,} of {total:,}) …{after}")
        sys.stderr.flush()

    try:
        yield report_progress
    finally:
        sys.stderr.write(before)
        sys.stderr.flush()


def announce(text: str, *, shown: bool | None = None) -> None:
    """A line that stays, also where stderr is not a terminal; nothing where `shown` is False."""
    if shown is not False and sys.stderr is not None:
        say(f"torchgauge: {text}")


def say(*lines: str) -> None:
    """Lines on stderr, each on a line of its own whatever names are in it."""
    sys.stderr.write(inert_lines("".join(f"{visible(line)}\n" for line in lines)))
    sys.stderr.flush()


def is_dumb_terminal() -> bool:
    return os.environ.get("TERM", "").lower() in ("dumb", "unknown")


@dataclass(frozen=True, slots=True)
class Announcement:
    """A status that is printed once, when the work starts."""

    text: str

    def start(self) -> None:
        say(self.text)

    def update(self, status: object) -> None:
        """A printed line stays."""

    def stop(self) -> None:
        """Nothing to clear."""


def import_torch(*, shown: bool | None = None) -> None:
    """The first import takes seconds, and more where the disk is slow."""
    with stage("importing torch", shown=shown):
        importlib.import_module("torch")


@contextmanager
def transfer(name: str, *, shown: bool | None = None) -> Iterator[Progress]:
    """Like `stage`, for bytes: the amount, the total, the rate and the remaining time."""
    with stage(name, shown=shown, describe=Transfer(name).line) as report_progress:
        yield report_progress


class Transfer:
    """The line of a running transfer; `clock` gives seconds."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self._clock, self._began = name, clock, clock()

    def line(self, done: int, total: int, part: str) -> str:
        seconds = self._clock() - self._began
        facts = [f"{format_bytes(done)} of {format_bytes(total)} ({format_percent(done / total if total else 1.0)})"]
        if done and seconds > 0:
            facts += [f"{done / seconds / 1e9:.2f} GB/s", f"{format_left(seconds * (total - done) / done)} left"]
        return f"{self._name}: {', '.join(facts)}; {part}"


def format_left(seconds: float) -> str:
    """`42 s`, `12 min 3 s`, `1 h 5 min`."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
