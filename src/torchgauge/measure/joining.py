"""Profiled ops joined to the static ones, by order and name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchgauge.measure.profile import Event, Kernel, Profiled
from torchgauge.records import OpRecord

# How far ahead a static op is looked for before it is given up: the others behind it must still be found.
_REACH = 2000


@dataclass(frozen=True, slots=True)
class Joined:
    """A static op and the call that was seen for it; the kernels include those of the calls inside."""

    index: int
    event: Event
    kernels: tuple[Kernel, ...]

    @property
    def device_ns(self) -> int:
        return sum(kernel.duration_ns for kernel in self.kernels)

    @property
    def idle_ns(self) -> int:
        """How long the device waited for this op."""
        return sum(kernel.idle_ns for kernel in self.kernels)


def join(ops: Sequence[OpRecord], run: Profiled) -> dict[int, Joined]:
    """By the static op's index. An op without a counterpart (another kernel was chosen) is left out."""
    calls = [event for event in run.events if event.path is None]
    found: dict[int, Joined] = {}
    place = 0
    for op in ops:
        at = _find(calls, op.signature.op, place)
        if at is None:
            continue
        after = _after(calls, at)
        kernels = tuple(kernel for event in calls[at:after] for kernel in event.kernels)
        found[op.index] = Joined(op.index, calls[at], kernels)
        place = after
    return found


def _find(calls: list[Event], name: str, place: int) -> int | None:
    return next((i for i in range(place, min(place + _REACH, len(calls))) if calls[i].name == name), None)


def _after(calls: list[Event], at: int) -> int:
    """The first call that is not inside the one at `at`."""
    end = calls[at].end_ns
    after = at + 1
    while after < len(calls) and calls[after].start_ns < end:
        after += 1
    return after
