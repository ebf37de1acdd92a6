"""When each module ran, in a profiled run: as it was seen, or from the ops that ran in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchgauge.facts import OpRecord, TraceRecord


@dataclass(frozen=True, slots=True)
class ModuleRange:
    """`inferred` ranges run from a module's first op to its last; they have a thread of their own."""

    path: str
    start_ns: int
    duration_ns: int
    thread: int
    inferred: bool = False


def module_ranges(trace: TraceRecord, ops: Sequence[OpRecord]) -> list[ModuleRange]:
    """TorchScript and exported programs call their modules without Python's knowing: there only the ops tell."""
    seen = [ModuleRange(trace.names[path], start, duration, thread) for start, duration, path, thread in trace.modules]
    if any(found.path for found in seen):
        return seen
    return [*seen, *_inferred(trace, {op.index: op.module for op in ops})]


def _inferred(trace: TraceRecord, modules: dict[int, str]) -> Iterator[ModuleRange]:
    track = 1 + max((row[3] for row in (*trace.calls, *trace.modules)), default=0)
    running: list[tuple[str, int]] = []
    until = 0
    for start, duration, _, _, index in trace.calls:
        if index not in modules:
            continue
        inside = _levels(modules[index])
        kept = _common(running, inside)
        yield from (ModuleRange(path, begun, until - begun, track, True) for path, begun in running[kept:])
        running = running[:kept] + [(path, start) for path in inside[kept:]]
        until = start + duration
    yield from (ModuleRange(path, begun, until - begun, track, True) for path, begun in running)


def _levels(path: str) -> list[str]:
    """`a`, `a.b`, `a.b.c`."""
    parts = path.split(".") if path else []
    return [".".join(parts[: depth + 1]) for depth in range(len(parts))]


def _common(running: list[tuple[str, int]], inside: list[str]) -> int:
    pairs = zip(running, inside, strict=False)
    return next(
        (depth for depth, ((path, _), other) in enumerate(pairs) if path != other), min(len(running), len(inside))
    )
