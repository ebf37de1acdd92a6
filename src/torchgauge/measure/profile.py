"""Profiled runs, from torch.profiler (Kineto): ops with their kernels, in the modules that called them; matched with
the static ops by order and name, and their times compared with the roofline of the device."""

from __future__ import annotations

import math
import os
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from torchgauge.capture.calls import intercept_calls
from torchgauge.facts import FREE, OpRecord
from torchgauge.facts.measurements import MeasuredOp
from torchgauge.hardware import Peaks, Roof, allows_tf32
from torchgauge.hardware.devices import LAUNCH
from torchgauge.registry import grouped

RUN = "torchgauge::run"
MODULE = "torchgauge::module "
MEMORY = "[memory]"
# Calls of CUDA's and HIP's runtime are not ops; most are linked to the op that made them.
_RUNTIME = re.compile(r"(cuda|cu|hip)[A-Z]")


@dataclass(frozen=True, slots=True)
class DeviceKernel:
    """Work on the device: a kernel, a copy or a fill; `idle_ns` is how long the device waited for it."""

    name: str
    start_ns: int
    duration_ns: int
    idle_ns: int = 0
    stream: int = 0


@dataclass(slots=True)
class HostEvent:
    """A call seen on the CPU: an op, or the range of a module (`path`). `kernels` are those it launched itself."""

    name: str
    start_ns: int
    end_ns: int
    thread: int
    path: str | None = None
    kernels: list[DeviceKernel] = field(default_factory=list)

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Allocation:
    """Bytes given (or, negative, taken back) by torch's allocator."""

    at_ns: int
    nbytes: int
    on_device: bool


@dataclass(frozen=True, slots=True)
class Profiled:
    """One profiled run, in order of start; a caller comes before what it calls."""

    start_ns: int
    end_ns: int
    events: tuple[HostEvent, ...]
    kernels: tuple[DeviceKernel, ...]
    allocations: tuple[Allocation, ...] = ()


def profile_runs(
    run: Callable[[], object], paths: Mapping[int, str], runs: int, *, device: torch.device, memory: bool = False
) -> list[Profiled]:
    """Profile `runs` runs; `paths` are the modules' paths by identity."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "9")  # its notes to stderr are not for the user
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    # Without `acc_events` some versions warn that another cycle would drop the events of this one.
    session = profile(activities=activities, profile_memory=memory, acc_events=True)

    def in_range(call: Callable[..., object], module: nn.Module, /, *args: object, **kwargs: object) -> object:
        path = paths.get(id(module))
        if path is None:
            return call(module, *args, **kwargs)
        with record_function(MODULE + path):
            return call(module, *args, **kwargs)

    # A compiled model would be compiled again with a range around each module: it has no paths.
    with intercept_calls(in_range) if paths else nullcontext(), session as profiler:
        for _ in range(runs):
            with record_function(RUN):
                run()
    results: Any = profiler.profiler
    return split_runs(results.kineto_results.events())


def split_runs(raw: Any) -> list[Profiled]:
    """The events of every run; those between runs are dropped."""
    on_cpu: dict[int, HostEvent] = {}
    launched: list[tuple[int, DeviceKernel]] = []
    allocations: list[Allocation] = []
    for found in raw:
        name = found.name()
        if name == MEMORY:
            device = found.device_type() != torch._C._autograd.DeviceType.CPU
            allocations.append(Allocation(found.start_ns(), found.nbytes(), device))
        elif found.device_type() == torch._C._autograd.DeviceType.CPU:
            if found.linked_correlation_id() != 0 or _RUNTIME.match(name):
                continue
            path = name.removeprefix(MODULE) if name.startswith(MODULE) else None
            start = found.start_ns()
            # The profiler's own work (`Activity Buffer Request`, `Lazy Function Loading`) has the number of the op that
            # it interrupts: the event that began first is the op.
            known = on_cpu.get(found.correlation_id())
            if known is None or start < known.start_ns:
                event = HostEvent(name, start, start + found.duration_ns(), found.start_thread_id(), path)
                on_cpu[found.correlation_id()] = event
        else:
            # The device repeats the ranges (ours, the optimizer's, the model's own) around the kernels launched in
            # them; releases before 2.5 do not mark them.
            is_annotation = getattr(found, "is_user_annotation", None)
            if not (is_annotation() if is_annotation else name.startswith(("torchgauge::", "Optimizer."))):
                kernel = DeviceKernel(name, found.start_ns(), found.duration_ns(), stream=found.device_resource_id())
                launched.append((found.linked_correlation_id(), kernel))
    # Kernels in order of their start, each with the time since the device last had something to do.
    kernels: list[DeviceKernel] = []
    until: int | None = None
    for correlation, kernel in sorted(launched, key=lambda pair: pair[1].start_ns):
        kernels.append(replace(kernel, idle_ns=0 if until is None else max(0, kernel.start_ns - until)))
        until = max(until or 0, kernel.start_ns + kernel.duration_ns)
        if correlation in on_cpu:
            on_cpu[correlation].kernels.append(kernels[-1])
    events = sorted(on_cpu.values(), key=lambda event: (event.start_ns, -event.end_ns))
    allocations.sort(key=lambda allocation: allocation.at_ns)
    return [
        Profiled(
            frame.start_ns,
            frame.end_ns,
            tuple(e for e in events if frame.start_ns <= e.start_ns < frame.end_ns and e is not frame),
            tuple(k for k in kernels if frame.start_ns <= k.start_ns < frame.end_ns),
            tuple(a for a in allocations if frame.start_ns <= a.at_ns < frame.end_ns),
        )
        for frame in events
        if frame.name == RUN
    ]


# How far ahead to search for a static op before giving up: the ops after it must still be found.
_MAX_CALLS_AHEAD = 2000


# TorchScript's executor runs some ops as others, one after the other (`decompose_ops.cpp`).
_OTHER_CALLS = {"aten::addmm": ("aten::mm", "aten::add")}
# An op; others are ranges, such as `forward`, and calls of autograd's nodes, which contain ops.
_OP = re.compile(r"(?!autograd::|torchgauge::)\w+::\w+")
# The range that torch puts around a step.
OPTIMIZER_STEP = "Optimizer.step#"


@dataclass(frozen=True, slots=True)
class Joined:
    """A static op and its recorded call, or calls one after the other; the kernels include those of nested calls."""

    index: int
    events: tuple[HostEvent, ...]
    kernels: tuple[DeviceKernel, ...]

    @property
    def start_ns(self) -> int:
        return self.events[0].start_ns

    @property
    def end_ns(self) -> int:
        return self.events[-1].end_ns

    @property
    def duration_ns(self) -> int:
        return sum(event.duration_ns for event in self.events)

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
    names = [_either(event.name) for event in calls]
    # Each op is the first call of its name after the previous one; nested calls are skipped.
    found: dict[int, tuple[int, ...]] = {}
    place = 0
    for op in ops:
        within = range(place, min(place + _MAX_CALLS_AHEAD, len(calls)))
        first = next((at for i in within if (at := _calls_of(op, calls, names, i))), None)
        if first is not None:
            found[op.index] = first
            place = _after(calls, first[-1])
    if len(found) < len(ops):
        # An op without a counterpart may have been paired with a call far ahead, so that the ops after it found none:
        # align the ops with the outermost calls of any of their names, as many as agree in order.
        found = max(_aligned(ops, calls, names, {}), _aligned(ops, calls, names, _OTHER_CALLS), found, key=len)
    joined: dict[int, Joined] = {}
    for index, places in found.items():
        kernels = tuple(k for at in places for event in calls[at : _after(calls, at)] for k in event.kernels)
        joined[index] = Joined(index, tuple(calls[at] for at in places), kernels)
    return joined


def _calls_of(op: OpRecord, calls: list[HostEvent], names: Sequence[str], at: int) -> tuple[int, ...]:
    """The calls from `at` on that are this op; empty if the call there is another op's."""
    wanted = _either(op.signature.op)
    if names[at] == wanted:
        return (at,)
    places: list[int] = []
    for name in _OTHER_CALLS.get(wanted, ()):
        if at == len(calls) or names[at] != name:
            return ()
        places.append(at)
        at = _after(calls, at)
    return tuple(places)


def _aligned(
    ops: Sequence[OpRecord], calls: list[HostEvent], names: Sequence[str], others: Mapping[str, tuple[str, ...]]
) -> dict[int, tuple[int, ...]]:
    """The places of the ops' calls, by index, where as many as can be agree in order; of ops in `others` all parts."""
    own = [(op.index, _either(op.signature.op)) for op in ops]
    wanted = [(index, part) for index, name in own for part in others.get(name, (name,))]
    known = {name for _, name in wanted}
    outermost: list[int] = []
    end = 0
    for at, event in enumerate(calls):
        if names[at] in known and event.start_ns >= end:
            outermost.append(at)
            end = event.end_ns
    pairs = align([name for _, name in wanted], [names[at] for at in outermost])
    found = grouped((wanted[i][0], outermost[j]) for i, j in pairs.items())
    counts = Counter(index for index, _ in wanted)
    return {index: tuple(places) for index, places in found.items() if len(places) == counts[index]}


@dataclass(frozen=True, slots=True)
class UnjoinedCall:
    """A call of the run that belongs to no static op, with all that it calls."""

    name: str
    duration_ns: int
    device_ns: int


def unjoined_calls(run: Profiled, joined: Mapping[int, Joined], *, on_device: bool) -> list[UnjoinedCall]:
    """The outermost calls of ops that are neither a static op's nor around one. On a device, those of the optimizer are
    left out: there its kernels work on many parameters at once."""
    calls = [event for event in run.events if event.path is None]
    known = {id(event) for call in joined.values() for event in call.events}
    starts: dict[int, list[int]] = {}
    for event in calls:
        if id(event) in known:
            starts.setdefault(event.thread, []).append(event.start_ns)
    until: dict[int, int] = {}
    found: list[UnjoinedCall] = []
    for at, event in enumerate(calls):
        if event.start_ns < until.get(event.thread, 0):
            continue
        joins = starts.get(event.thread, [])
        place = bisect_left(joins, event.start_ns)
        is_optimizer = on_device and event.name.startswith(OPTIMIZER_STEP)
        if id(event) in known or is_optimizer:
            until[event.thread] = event.end_ns
        elif _OP.fullmatch(event.name) and not (place < len(joins) and joins[place] < event.end_ns):
            until[event.thread] = event.end_ns
            inside = (e for e in calls[at : _after(calls, at)] if e.thread == event.thread)
            device_ns = sum(kernel.duration_ns for e in inside for kernel in e.kernels)
            found.append(UnjoinedCall(event.name, event.duration_ns, device_ns))
    return found


def _either(name: str) -> str:
    """The op's name, in place or not: torch may work in place unless a tensor is of a subclass, as in the static
    pass."""
    return name.removesuffix("_")


def _after(calls: list[HostEvent], at: int) -> int:
    """The first call that is not inside the one at `at`."""
    end = calls[at].end_ns
    after = at + 1
    while after < len(calls) and calls[after].start_ns < end:
        after += 1
    return after


# Rows kept for backtracking, of as many bits each: 50 MB. Only very long sequences need several blocks.
BLOCK_ROWS = 20_000


def align(wanted: Sequence[str], found: Sequence[str], *, block: int = BLOCK_ROWS) -> dict[int, int]:
    """Positions in `wanted` to positions in `found`, both rising, as many as there can be within a block; of each block
    but the last only the first half counts, because its end may depend on what follows."""
    pairs: dict[int, int] = {}
    row = column = 0
    while row < len(wanted) and column < len(found):
        is_last = row + block >= len(wanted)
        # The same share of both: with more, later parts could be taken for these.
        reach = math.ceil(block * (len(found) - column) / (len(wanted) - row))
        part = found[column:] if is_last else found[column : column + reach]
        kept = [pair for pair in _pairs(wanted[row : row + block], part) if is_last or pair[0] < block // 2]
        pairs |= {row + i: column + j for i, j in kept}
        if is_last:
            break
        row += block // 2
        column += kept[-1][1] + 1 if kept else 0
    return pairs


def _pairs(wanted: Sequence[str], found: Sequence[str]) -> list[tuple[int, int]]:
    """The longest common sequence. After each of `wanted` a row of bits, 0 where the length of the common sequence
    grows (Hyyrö 2004, Bit-parallel LCS-length computation revisited); then back through the rows."""
    every = (1 << len(found)) - 1
    places: dict[str, int] = {}
    for j, name in enumerate(found):
        places[name] = places.get(name, 0) | 1 << j
    rows = [every]
    for name in wanted:
        matching = rows[-1] & places.get(name, 0)
        rows.append((rows[-1] + matching | rows[-1] - matching) & every)
    pairs: list[tuple[int, int]] = []
    i, j = len(wanted), len(found)
    while i and j:
        if rows[i] >> (j - 1) & 1:
            j -= 1
        elif not rows[i - 1] >> (j - 1) & 1:
            i -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((i, j))
    return pairs[::-1]


@dataclass(frozen=True, slots=True)
class OpTime:
    """Means over the profiled runs: `time_s` on the device if there is one, otherwise on the CPU; `idle_s` is how long
    the device waited for the op."""

    time_s: float
    cpu_s: float
    idle_s: float
    kernels: tuple[str, ...]


def op_times(runs: Sequence[Mapping[int, Joined]], *, on_device: bool) -> dict[int, OpTime]:
    """By index, for the ops seen in every run."""
    common = set(runs[0]).intersection(*runs[1:]) if runs else set()
    times: dict[int, OpTime] = {}
    for index in sorted(common):
        calls = [run[index] for run in runs]
        cpu = fmean(call.duration_ns for call in calls) * 1e-9
        device = fmean(call.device_ns for call in calls) * 1e-9
        idle = fmean(call.idle_ns for call in calls) * 1e-9
        names = tuple(dict.fromkeys(kernel.name for kernel in calls[-1].kernels))
        times[index] = OpTime(device if on_device else cpu, cpu, idle, names)
    return times


def op_figures(op: OpRecord, time: OpTime, peaks: Peaks | None, *, least_s: float) -> MeasuredOp:
    """The measured members of an op's row; `least_s` is the time of an op that does nothing."""
    cost = op.signature.cost
    moved = cost.bytes_moved
    # torch has a switch for matmuls and another for cuDNN's convolutions and RNNs.
    tf32 = allows_tf32("convolution" if op.signature.category in ("convolution", "recurrent") else "matmul")
    rate = peaks.rate(op.signature.dtype, tf32=tf32) if peaks else None
    roof = None
    if peaks is not None and rate is not None and peaks.bytes_per_s is not None:
        roof = Roof(rate, peaks.bytes_per_s)
    seconds = time.time_s
    works = bool(cost.flops or moved)
    bound = None
    if works and seconds:
        # On a device an op is launch-bound when the device waited longer for it than it worked on it; on the CPU when
        # it took hardly longer than an op that does nothing.
        is_launch_bound = time.idle_s > seconds if time.kernels else seconds < 2 * least_s
        bound = LAUNCH if is_launch_bound else roof.bound(cost.flops, moved) if roof else None
    return {
        "time_s": seconds,
        "cpu_time_s": time.cpu_s,
        "kernels": list(time.kernels),
        "flops_per_s": cost.flops / seconds if seconds and cost.flops else None,
        "bytes_per_s": moved / seconds if seconds and moved else None,
        "roof_share": roof.least_seconds(cost.flops, moved) / seconds if roof and seconds and works else None,
        "bound": bound,
    }


def least_time(ops: Sequence[OpRecord], times: Mapping[int, OpTime]) -> float:
    """The median time of view ops: the cost of dispatching alone."""
    seconds = [times[op.index].cpu_s for op in ops if op.signature.status == FREE and op.index in times]
    return median(seconds) if seconds else 0.0
