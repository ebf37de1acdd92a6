"""Times of modules and ops, and the memory of a run: separate runs for modules, ops and allocations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import TYPE_CHECKING

import psutil
import torch

from torchgauge.facts import Measured, OpRecord, TraceRecord, blank_measurements
from torchgauge.hardware import Peaks
from torchgauge.measure.latency import Budget, nearest
from torchgauge.measure.module_times import (
    ENOUGH_RUNS,
    OPTIMIZER,
    ModuleTime,
    ModuleWatch,
    module_paths,
    module_rows,
    own_times,
    script_roots,
)
from torchgauge.measure.profile import (
    OPTIMIZER_STEP,
    HostEvent,
    Joined,
    Profiled,
    join,
    least_time,
    op_figures,
    op_times,
    profile_runs,
    unjoined_calls,
)
from torchgauge.measure.subject import Subject, TrainingStep
from torchgauge.registry import grouped

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Joins, Measurements, Memory, Moment, Pattern, Profile, UnjoinedCalls
    from torchgauge.facts.measurements import MeasuredModule, MeasuredOp

PROFILED_RUNS = 5
_PARTS_SHARE = 0.3
_MIN_WATCHED_RUNS = 2


@dataclass(frozen=True, slots=True)
class MeasurementPlan:
    """The parts of a measurement: `parts` are modules and memory, `profile` adds the ops, `system` the machine and how
    the run scales with threads. `peaks` are the device's, if known; `more` are further stages."""

    profile: bool = False
    train: bool = False
    budget: Budget = field(default_factory=Budget)
    peaks: Peaks | None = None
    parts: bool = True
    system: bool = False
    more: tuple[tuple[str, Callable[[Measurement], None]], ...] = ()


@dataclass(slots=True)
class Measurement:
    """A measurement in progress: `run` is one whole run of the subject, in training its `step`; the rest are the
    results so far."""

    subject: Subject
    run: Callable[[], None]
    ops: Sequence[OpRecord]
    plan: MeasurementPlan
    step: TrainingStep | None = None
    figures: Measurements = field(default_factory=blank_measurements)
    modules: Mapping[str, MeasuredModule] = field(default_factory=dict)
    op_rows: dict[int, MeasuredOp] = field(default_factory=dict)
    trace: TraceRecord | None = None
    watch: ModuleWatch | None = None

    @property
    def on_device(self) -> bool:
        return self.subject.device.type == "cuda"

    @property
    def total_s(self) -> float:
        """The median of the undisturbed runs."""
        latency = self.figures["latency"]
        assert latency is not None  # the first stage, which raises if no run was timed
        return latency["median_s"]

    def finished(self) -> Measured:
        return Measured(self.figures, self.modules, self.op_rows, self.trace)


def measure_modules(work: Measurement) -> None:
    """Modules, and ops if requested; time that neither explains is a separate figure."""
    subject, plan = work.subject, work.plan
    paths = module_paths(subject.model)
    calls: dict[str, ModuleTime] = {}
    if not work.on_device:
        # From the watched runs between the undisturbed ones; a few more if there were too few, or too few near the
        # median.
        watch = work.watch or ModuleWatch(paths)
        end = perf_counter() + _PARTS_SHARE * plan.budget.seconds
        while watch.runs < _MIN_WATCHED_RUNS or (len(watch.near(work.total_s)) < ENOUGH_RUNS and perf_counter() < end):
            watch.run(work.run)
        calls = watch.times(near_s=work.total_s)
    runs = repeats(work.total_s, plan.budget, most=PROFILED_RUNS)
    seen = profile_runs(work.run, paths, runs, device=subject.device)
    profiled = nearest(seen, lambda run: (run.end_ns - run.start_ns) * 1e-9, work.total_s)
    joined = [join(work.ops, run) for run in profiled]
    calls = device_module_times(profiled) if work.on_device else calls
    times = op_times(joined, on_device=work.on_device)
    own = own_times(calls, work.ops, times, script_roots(subject.model))
    explained = sum(time.time_s for time in times.values())
    if plan.train and work.on_device:
        # The static ops of the optimizer are per parameter, its kernels on a device are not: their time belongs to the
        # whole model.
        seconds = optimizer_time(profiled)
        known = sum(phases.pop(OPTIMIZER, 0.0) for phases in own.values())
        own.setdefault("", {})[OPTIMIZER] = seconds
        explained += seconds - known
    work.modules = module_rows({path: sum(phases.values()) for path, phases in own.items()}, work.total_s)
    work.figures |= {"module_phases": own} if plan.train else {}
    work.figures["unexplained_s"] = work.total_s - explained
    work.figures["profile"] = {**_profile(work, profiled, joined), **_joins(work, profiled, joined, explained)}
    if plan.profile:
        least = least_time(work.ops, times)
        timed = [op for op in work.ops if op.index in times]
        work.op_rows = {op.index: op_figures(op, times[op.index], plan.peaks, least_s=least) for op in timed}


def repeats(seconds: float, budget: Budget, *, most: int) -> int:
    """How many runs of this length to make for the parts."""
    return int(min(most, max(2, _PARTS_SHARE * budget.seconds / seconds))) if seconds else most


def measure_memory(work: Measurement) -> None:
    recorded = _recorded(work.subject, work.run)
    found = join(work.ops, recorded)
    figures = work.figures["memory"] = memory_figures(work.subject, work.run, recorded)
    figures["pattern"] = {**allocation_pattern([recorded], on_device=work.on_device), **fragmentation(figures)}
    figures["timeline"] = timeline(recorded, found, on_device=work.on_device)
    if work.step is not None:
        figures["optimizer_state_bytes"] = work.step.state_bytes()
    work.trace = trace_of(recorded, found)


def _recorded(subject: Subject, run: Callable[[], None]) -> Profiled:
    """The first run under a profiler includes its setup."""
    paths = {} if subject.is_compiled else module_paths(subject.model)
    return profile_runs(run, paths, 2, device=subject.device, memory=True)[-1]


def memory_figures(subject: Subject, run: Callable[[], None], recorded: Profiled | None = None) -> Memory:
    on_device = subject.device.type == "cuda"
    seen = recorded or _recorded(subject, run)
    peak = allocation_peak(seen, on_device=on_device)
    return {"allocated_peak_bytes": peak, **(cuda_peak(run, subject.device) if on_device else process_peak(run))}


def _profile(work: Measurement, runs: Sequence[Profiled], joined: Sequence[Mapping[int, Joined]]) -> Profile:
    """How the profiled runs compare with the undisturbed ones, and the time that they do not explain."""
    spans = sorted((run.end_ns - run.start_ns) * 1e-9 for run in runs)
    worked = sorted(sum(kernel.duration_ns for kernel in run.kernels) * 1e-9 for run in runs)
    middle = len(runs) // 2
    return {
        "runs": len(runs),
        "median_s": spans[middle],
        "overhead_share": spans[middle] / work.total_s - 1 if work.total_s else None,
        "joined_ops": min(len(found) for found in joined),
        "static_ops": len(work.ops),
        "kernels": len(runs[-1].kernels) if work.on_device else None,
        "device_s": worked[middle] if work.on_device else None,
        "device_idle_s": max(0.0, work.total_s - worked[middle]) if work.on_device else None,
    }


def _joins(
    work: Measurement, runs: Sequence[Profiled], joined: Sequence[Mapping[int, Joined]], explained_s: float
) -> Joins:
    """The calls that belong to no static op, means over the runs, and the share of the time in calls that the others
    have."""
    calls = grouped(
        (call.name, (call.device_ns if work.on_device else call.duration_ns) * 1e-9)
        for run, found in zip(runs, joined, strict=True)
        for call in unjoined_calls(run, found, on_device=work.on_device)
    )
    rows: list[UnjoinedCalls] = [
        {"op": name, "calls": max(1, round(len(each) / len(runs))), "time_s": sum(each) / len(runs)}
        for name, each in calls.items()
    ]
    whole = explained_s + sum(row["time_s"] for row in rows)
    return {
        "attributed_share": explained_s / whole if whole else None,
        "unjoined_calls": sorted(rows, key=lambda row: -row["time_s"]),
    }


def device_module_times(runs: Sequence[Profiled]) -> dict[str, ModuleTime]:
    """Means over the runs, by path; modules that were not called are absent."""
    parts: list[dict[str, ModuleTime]] = []
    for run in runs:
        inclusive, own, calls = Counter[str](), Counter[str](), Counter[str]()
        open_ranges: list[HostEvent] = []
        for event in run.events:
            while open_ranges and open_ranges[-1].end_ns <= event.start_ns:
                open_ranges.pop()
            if event.path is not None:
                open_ranges.append(event)
                calls[event.path] += 1
            worked_ns = sum(kernel.duration_ns for kernel in event.kernels)
            if worked_ns and open_ranges:
                own[open_ranges[-1].path or ""] += worked_ns
                inclusive.update(dict.fromkeys((held.path or "" for held in open_ranges), worked_ns))
        parts.append({path: ModuleTime(inclusive[path] * 1e-9, own[path] * 1e-9, calls[path]) for path in calls})
    means: dict[str, ModuleTime] = {}
    for path in dict.fromkeys(path for part in parts for path in part):
        times = [part[path] for part in parts if path in part]
        means[path] = ModuleTime(fmean(t.inclusive_s for t in times), fmean(t.self_s for t in times), times[0].calls)
    return means


def optimizer_time(runs: Sequence[Profiled]) -> float:
    """Mean device time of the kernels launched by optimizers; on a device, one kernel works on many parameters."""
    totals = []
    for run in runs:
        end = total = 0
        for event in run.events:
            if event.name.startswith(OPTIMIZER_STEP):
                end = max(end, event.end_ns)
            if event.start_ns < end:
                total += sum(kernel.duration_ns for kernel in event.kernels)
        totals.append(total)
    return fmean(totals) * 1e-9


NO_OP = -1


def trace_of(run: Profiled, joined: Mapping[int, Joined]) -> TraceRecord:
    """The whole run; calls and kernels of the static ops carry their index."""
    ops = {id(event): index for index, call in joined.items() for event in call.events}
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


# Memory: what torch allocated, and the growth of the process.

_CLEAR = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


def allocation_peak(run: Profiled, *, on_device: bool) -> int:
    """The most bytes that torch held at once beyond what it held before the run."""
    held = peak = 0
    for allocation in run.allocations:
        if allocation.on_device == on_device:
            held += allocation.nbytes
            peak = max(peak, held)
    return peak


def timeline(run: Profiled, joined: Mapping[int, Joined], *, on_device: bool) -> list[Moment]:
    """By op: bytes held when it ended, and bytes it held only while it worked (workspace)."""
    moments = [(a.at_ns, a.nbytes) for a in run.allocations if a.on_device == on_device]
    rows: list[Moment] = []
    held = place = 0
    for index, call in sorted(joined.items(), key=lambda item: item[1].start_ns):
        while place < len(moments) and moments[place][0] < call.start_ns:
            held += moments[place][1]
            place += 1
        before = peak = held
        while place < len(moments) and moments[place][0] < call.end_ns:
            held += moments[place][1]
            peak = max(peak, held)
            place += 1
        rows.append({"op": index, "held_bytes": held, "workspace_bytes": peak - max(before, held)})
    return rows


def process_peak(run: Callable[[], object]) -> Memory:
    """The growth of the process's resident memory over a run; exact if the kernel keeps the peak (Linux)."""
    process = psutil.Process()
    before = process.memory_info().rss
    try:
        _CLEAR.write_text("5")
        is_exact = True
    except OSError:
        is_exact = False
    run()
    peak = process.memory_info().rss
    if is_exact:
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        peak = int(line.split()[1]) * 1024
    return {
        "rss_before_bytes": before,
        "rss_peak_bytes": peak,
        "rss_growth_bytes": max(0, peak - before),
        "rss_method": "peak kept by the kernel" if is_exact else "read after the run: the peak may have been higher",
    }


def cuda_peak(run: Callable[[], object], device: torch.device) -> Memory:
    """Peaks of torch's CUDA allocator during a run: in tensors (allocated), and from the driver (reserved)."""
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    torch.cuda.synchronize(device)
    # In split blocks: free, but too small for a larger tensor, and not returned to the driver.
    split = torch.cuda.memory_stats(device).get("inactive_split_bytes.all.peak", 0)
    return {
        "cuda_before_bytes": before,
        "cuda_split_peak_bytes": split,
        "cuda_allocated_peak_bytes": torch.cuda.max_memory_allocated(device),
        "cuda_reserved_peak_bytes": torch.cuda.max_memory_reserved(device),
    }


def allocation_pattern(runs: Sequence[Profiled], *, on_device: bool) -> Pattern:
    """The allocations of a run: how many, of what sizes, and how often memory is reused."""
    sizes = sorted(a.nbytes for a in runs[-1].allocations if a.on_device == on_device and a.nbytes > 0) if runs else []
    if not sizes:
        return {"allocations": 0}
    total = sum(sizes)
    peak = allocation_peak(runs[-1], on_device=on_device)
    # Counts by power of two: the key is the upper bound in bytes.
    counts = dict(Counter(str(1 << max(0, (size - 1).bit_length())) for size in sizes))
    return {
        "allocations": len(sizes),
        "total_bytes": total,
        "median_bytes": sizes[len(sizes) // 2],
        "largest_bytes": sizes[-1],
        # Bytes requested over the run per byte of the peak: how often the same memory is reused.
        "reuse": total / peak if peak else None,
        "by_size": counts,
    }


def fragmentation(figures: Memory) -> Pattern:
    """The share of the memory taken from the driver that lies in pieces; unknown for the CPU's allocator."""
    reserved = figures.get("cuda_reserved_peak_bytes")
    if reserved is None:
        return {"fragmentation": None, "fragmentation_reason": "the CPU's allocator does not report its free pieces"}
    share = (figures.get("cuda_split_peak_bytes") or 0) / reserved if reserved else None
    return {"fragmentation": share, "fragmentation_reason": None}
