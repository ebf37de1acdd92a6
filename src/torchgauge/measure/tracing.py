"""A profiled run as a record that can be saved and drawn."""

from __future__ import annotations

from collections.abc import Mapping

from torchgauge.facts import TraceRecord
from torchgauge.measure.joining import Joined
from torchgauge.measure.profile import Profiled

NO_OP = -1


def trace_of(run: Profiled, joined: Mapping[int, Joined]) -> TraceRecord:
    """The whole run; calls and kernels of the static ops carry their index."""
    ops = {id(call.event): index for index, call in joined.items()}
    launched = {id(kernel): index for index, call in joined.items() for kernel in call.kernels}
    names: dict[str, int] = {}
    threads: dict[int, int] = {}

    def name(text: str) -> int:
        return names.setdefault(text, len(names))

    def thread(number: int) -> int:
        return threads.setdefault(number, len(threads))

    start = run.start_ns
    modules = [
        (event.start_ns - start, event.duration_ns, name(event.path), thread(event.thread))
        for event in run.events
        if event.path is not None
    ]
    calls = [
        (e.start_ns - start, e.duration_ns, name(e.name), thread(e.thread), ops.get(id(e), NO_OP))
        for e in run.events
        if e.path is None
    ]
    kernels = [
        (k.start_ns - start, k.duration_ns, name(k.name), k.stream, launched.get(id(k), NO_OP)) for k in run.kernels
    ]
    memory = [(a.at_ns - start, a.nbytes, int(a.on_device)) for a in run.allocations]
    duration = run.end_ns - start
    return TraceRecord(duration, tuple(names), tuple(modules), tuple(calls), tuple(kernels), tuple(memory))
