"""Device time of every module: the kernels launched while it ran, from profiled runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from torchgauge.measure.module_times import ModuleTime
from torchgauge.measure.profile import Event, Profiled

# The range that torch puts around a step.
_OPTIMIZER_STEP = "Optimizer.step#"


def device_module_times(runs: Sequence[Profiled]) -> dict[str, ModuleTime]:
    """Means over the runs, by path; modules that were not called are absent."""
    parts = [_one_run(run) for run in runs]
    paths = dict.fromkeys(path for part in parts for path in part)
    return {path: _mean([part[path] for part in parts if path in part]) for path in paths}


def optimizer_time(runs: Sequence[Profiled]) -> float:
    """Mean device time of the kernels launched by optimizers: on a device one works on many parameters at once."""
    return fmean(sum(_optimizer_kernels(run)) for run in runs) * 1e-9


def _optimizer_kernels(run: Profiled) -> Iterator[int]:
    end = 0
    for event in run.events:
        if event.name.startswith(_OPTIMIZER_STEP):
            end = max(end, event.end_ns)
        if event.start_ns < end:
            yield from (kernel.duration_ns for kernel in event.kernels)


def _mean(times: list[ModuleTime]) -> ModuleTime:
    return ModuleTime(fmean(t.inclusive_s for t in times), fmean(t.self_s for t in times), times[0].calls)


def _one_run(run: Profiled) -> dict[str, ModuleTime]:
    inclusive: dict[str, int] = {}
    own: dict[str, int] = {}
    calls: dict[str, int] = {}
    open_ranges: list[Event] = []
    for event in run.events:
        while open_ranges and open_ranges[-1].end_ns <= event.start_ns:
            open_ranges.pop()
        if event.path is not None:
            open_ranges.append(event)
            calls[event.path] = calls.get(event.path, 0) + 1
        worked = sum(kernel.duration_ns for kernel in event.kernels)
        if worked and open_ranges:
            innermost = open_ranges[-1].path or ""
            own[innermost] = own.get(innermost, 0) + worked
            for path in dict.fromkeys(held.path or "" for held in open_ranges):
                inclusive[path] = inclusive.get(path, 0) + worked
    return {
        path: ModuleTime(inclusive.get(path, 0) * 1e-9, own.get(path, 0) * 1e-9, count) for path, count in calls.items()
    }
