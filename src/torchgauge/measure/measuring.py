"""One measurement of a model: the total from undisturbed runs, the parts from runs of their own, the rest shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from torchgauge.capture.paths import ModulePaths
from torchgauge.hardware import Peaks
from torchgauge.measure.device_times import device_module_times
from torchgauge.measure.joining import Joined, join
from torchgauge.measure.latency import Budget, Timed, time_runs
from torchgauge.measure.memory import allocation_pattern, allocation_peak, cuda_peak, process_peak, timeline
from torchgauge.measure.module_times import ModuleTime, time_modules
from torchgauge.measure.noise import Surroundings, surroundings_noted
from torchgauge.measure.op_times import OpTime, least_time, op_figures, op_times
from torchgauge.measure.profile import Profiled, profile_runs
from torchgauge.measure.subject import Subject
from torchgauge.measure.tracing import trace_of
from torchgauge.measure.training import TrainingStep
from torchgauge.records import Measured, OpRecord

Tell = Callable[[int, int, str], None]

_PROFILED_RUNS = 5
_PARTS_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class Order:
    """What to measure; `peaks` are the device's, where they are known."""

    profile: bool = False
    train: bool = False
    budget: Budget = field(default_factory=Budget)
    peaks: Peaks | None = None


def measure(subject: Subject, ops: Sequence[OpRecord], order: Order, tell: Tell | None = None) -> Measured:
    """All that was asked for. What fails on the way is said under `failure`; what was measured before it is kept."""
    told = tell or (lambda done, total, part: None)
    step = TrainingStep(subject) if order.train else None
    run = step.run if step else subject.run
    told(0, 3, "latency")
    with surroundings_noted() as noted:
        timed = time_runs(run, order.budget)
    figures = _headline(subject, timed, noted)
    if timed.failure is not None or not timed.seconds:
        return Measured(figures)
    if step is not None:
        figures["phases"] = step.phases()
    try:
        return _parts(subject, run, ops, order, figures, told)
    # The model's own code may raise in a later run what it did not raise in an earlier one.
    except (Exception, KeyboardInterrupt) as error:
        return Measured(figures | {"failure": failure_text(error)})


def _headline(subject: Subject, timed: Timed, noted: Surroundings) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "latency": timed.figures(items_per_run(subject)),
        "device": str(subject.device),
        "threads": {"intra_op": torch.get_num_threads(), "inter_op": torch.get_num_interop_threads()},
        "surroundings": noted.figures(),
        "notes": [*subject.notes, *_doubts(timed, noted)],
        "failure": failure_text(timed.failure) if timed.failure else None,
    }
    return figures


def _doubts(timed: Timed, noted: Surroundings) -> list[str]:
    doubts = []
    precision = timed.precision
    if precision is not None and precision > 0.02:
        doubts.append(f"the median is known to ±{precision:.0%} only: the machine is too noisy, or the time was short")
    if noted.is_loud:
        doubts.append(f"other processes used {noted.others_share:.0%} of the machine while it was measured")
    return doubts


def failure_text(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return "the device ran out of memory: try a smaller batch or a narrower dtype"
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def items_per_run(subject: Subject) -> int:
    """The size of the batch: the first dimension of the first tensor given."""
    for value in (*subject.args, *subject.kwargs.values()):
        if isinstance(value, torch.Tensor) and value.dim():
            return int(value.shape[0])
    return 1


def _parts(
    subject: Subject,
    run: Callable[[], None],
    ops: Sequence[OpRecord],
    order: Order,
    figures: dict[str, Any],
    told: Tell,
) -> Measured:
    on_device = subject.device.type == "cuda"
    total = figures["latency"]["median_s"]
    paths = module_paths(subject.model)
    told(1, 3, "modules")
    modules = {} if on_device else time_modules(run, paths, _repeats(total, order.budget))
    told(2, 3, "memory and ops")
    profiled = profile_runs(run, paths, _PROFILED_RUNS, device=subject.device)
    # The first run of a profiler sets it up; the last is as the others.
    recorded = profile_runs(run, paths, 2, device=subject.device, memory=True)[-1]
    found = join(ops, recorded)
    joined = [join(ops, one) for one in profiled]
    modules = device_module_times(profiled) if on_device else modules
    figures["memory"] = _memory(subject, run, recorded, found, on_device=on_device)
    times = op_times(joined, on_device=on_device)
    figures["unexplained_s"] = total - sum(time.time_s for time in times.values())
    figures["profile"] = _profile(profiled, joined, ops, total, on_device=on_device)
    op_rows = _op_rows(ops, times, order) if order.profile else {}
    return Measured(figures, module_rows(modules, total), op_rows, trace_of(recorded, found))


def _repeats(total: float, budget: Budget) -> int:
    return int(min(20, max(3, _PARTS_SHARE * budget.seconds / total)))


def module_paths(model: nn.Module) -> dict[int, str]:
    return {id(member.module): member.path for member in ModulePaths(model).members}


def module_rows(times: Mapping[str, ModuleTime], total: float) -> dict[str, dict[str, Any]]:
    """A module's time is its own plus that of the modules below its path, as all its figures are: a list that is never
    called has its members' time. Modules in which nothing was called are left out."""
    inclusive: dict[str, float] = {}
    for path, time in times.items():
        if time.calls:
            for place in (path, *_above(path)):
                inclusive[place] = inclusive.get(place, 0.0) + time.self_s
    return {
        path: {"time_s": seconds, "self_time_s": _own(times.get(path)), "time_share": seconds / total}
        for path, seconds in inclusive.items()
    }


def _own(time: ModuleTime | None) -> float:
    return time.self_s if time else 0.0


def _above(path: str) -> Iterator[str]:
    while path:
        path = path.rpartition(".")[0]
        yield path


def _op_rows(ops: Sequence[OpRecord], times: Mapping[int, OpTime], order: Order) -> dict[int, dict[str, Any]]:
    least = least_time(ops, times)
    return {op.index: op_figures(op, times[op.index], order.peaks, least_s=least) for op in ops if op.index in times}


def _memory(
    subject: Subject, run: Callable[[], None], recorded: Profiled, joined: Mapping[int, Joined], *, on_device: bool
) -> dict[str, Any]:
    measured = cuda_peak(run, subject.device) if on_device else process_peak(run)
    return {
        "allocated_peak_bytes": allocation_peak(recorded, on_device=on_device),
        **measured,
        "pattern": allocation_pattern([recorded], on_device=on_device),
        "timeline": timeline(recorded, joined, on_device=on_device),
    }


def _profile(
    runs: Sequence[Profiled],
    joined: Sequence[Mapping[int, Joined]],
    ops: Sequence[OpRecord],
    total: float,
    *,
    on_device: bool,
) -> dict[str, Any]:
    """How the profiled runs compare with the undisturbed ones, and what they leave unexplained."""
    spans = [(run.end_ns - run.start_ns) * 1e-9 for run in runs]
    worked = [sum(kernel.duration_ns for kernel in run.kernels) * 1e-9 for run in runs]
    return {
        "runs": len(runs),
        "median_s": sorted(spans)[len(spans) // 2],
        "overhead_share": sorted(spans)[len(spans) // 2] / total - 1,
        "joined_ops": min(len(found) for found in joined),
        "static_ops": len(ops),
        "kernels": len(runs[-1].kernels) if on_device else None,
        "device_s": sorted(worked)[len(worked) // 2] if on_device else None,
        "device_idle_s": max(0.0, total - sorted(worked)[len(worked) // 2]) if on_device else None,
    }
