"""Profiled runs, from torch.profiler (Kineto): the ops that ran with their kernels, inside the modules they ran in."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from torchgauge.capture.calls import intercept_calls

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
    return _split(results.kineto_results.events())


def _split(raw: Any) -> list[Profiled]:
    """The events of every run; what lies between runs is dropped."""
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
            # The profiler's own work (`Activity Buffer Request`, `Lazy Function Loading`) goes by the number of the op
            # that it interrupts: the one that began first is the op.
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
