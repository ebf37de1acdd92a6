"""One profiled run in the trace event format of Chrome, which Perfetto opens too.

The host is process 1: modules as nested slices, the calls of ops below them, a track for each thread. The device is
process 2: its kernels by stream. The memory that torch held beyond what it held before the run is a counter of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torchgauge.errors import UsageError
from torchgauge.facts import COUNTED, OpRecord, TraceRecord, View
from torchgauge.report.escape import json_line
from torchgauge.report.options import Options
from torchgauge.report.registry import renderer
from torchgauge.units import format_shape

HOST, DEVICE = 1, 2
Event = dict[str, Any]


@renderer(
    "trace",
    suffix=".trace.json",
    contents="one profiled run for Chrome's tracing or Perfetto; needs `--inference`",
    note="of measured runs",
)
def render_trace(view: View, options: Options) -> str:
    trace = view.capture.measured.trace if view.capture.measured else None
    if trace is None:
        raise UsageError(
            "there is no profiled run to write as a trace: measure the model (--inference, inference=True)"
        )
    events = ",\n".join(json_line(event) for event in trace_events(view, trace))
    circumstances = {
        "tool": f"torchgauge {view.capture.version}",
        "model": view.capture.target.name,
        "created": view.capture.created,
        "run": "one profiled run, with the profiler's overhead",
        "profiled_run_s": trace.duration_ns / 1e9,
        "undisturbed_median_s": view.totals.time_s,
    }
    other = json_line(circumstances)
    return f'{{"displayTimeUnit": "ms",\n"otherData": {other},\n"traceEvents": [\n{events}\n]}}\n'


def trace_events(view: View, trace: TraceRecord) -> Iterator[Event]:
    """Names of the tracks first, then slices and counters; a slice comes before those inside it."""
    ranges = module_ranges(trace, view.capture.ops)
    # A track for each kernel, in their order: those of a stream share one, unless they overlap.
    lanes: list[int] = []
    free_from: list[tuple[int, int]] = []
    for start, duration, _, stream, _ in trace.kernels:
        fitting = (lane for lane, (owner, until) in enumerate(free_from) if owner == stream and until <= start)
        lane = next(fitting, len(free_from))
        free_from[lane : lane + 1] = [(stream, start + duration)]
        lanes.append(lane)
    yield _named("process_name", HOST, 0, f"host: {view.capture.target.name}")
    for thread in sorted({row[3] for row in (*trace.calls, *trace.modules)}):
        yield _named("thread_name", HOST, thread, "modules and ops" if thread == 0 else f"thread {thread}")
    inferred = {found.thread for found in ranges if found.inferred}
    for thread in inferred:
        yield _named("thread_name", HOST, thread, "modules, from the ops that ran in them")
    if trace.kernels:
        device = view.measurements.get("device") if view.measurements else None
        yield _named("process_name", DEVICE, 0, f"device: {device or view.capture.run.device}")
        streams = dict(zip(lanes, (row[3] for row in trace.kernels), strict=True))
        for lane, stream in sorted(streams.items()):
            yield _named("thread_name", DEVICE, lane, f"stream {stream}")
    yield from _host_slices(view, trace, ranges)
    ops = {op.index: op for op in view.capture.ops}
    for (start, duration, kernel, _, index), lane in zip(trace.kernels, lanes, strict=True):
        op = ops.get(index)
        facts = {"op": op.index, "launched by": op.op, "module": op.module} if op else {}
        yield _slice(trace.names[kernel], "kernel", start, duration, DEVICE, lane, facts)
    held = {HOST: 0, DEVICE: 0}
    for at, nbytes, on_device in trace.memory:
        process = DEVICE if on_device else HOST
        held[process] += nbytes
        name = "device memory held" if on_device else "memory held"
        yield {"ph": "C", "name": name, "ts": at / 1000, "pid": process, "tid": 0, "args": {"bytes": held[process]}}


def _named(what: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": what, "ts": 0, "pid": process, "tid": thread, "args": {"name": name}}


def _host_slices(view: View, trace: TraceRecord, ranges: list[ModuleRange]) -> list[Event]:
    ops = {op.index: op for op in view.capture.ops}
    kinds = {record.path: record.type for record in view.capture.modules}
    modules = [
        _slice(
            f"{found.path} {kinds.get(found.path, '')}".strip() or "model",
            "module",
            found.start_ns,
            found.duration_ns,
            HOST,
            found.thread,
            {},
        )
        for found in ranges
    ]
    calls = []
    for start, duration, name, thread, index in trace.calls:
        facts: Event = {}
        if (op := ops.get(index)) is not None:
            shapes = ", ".join(format_shape(spec.shape) for spec in op.signature.inputs)
            facts = {"op": op.index, "module": op.module, "inputs": shapes}
            if op.status == COUNTED:
                facts |= {"flops": op.cost.flops, "bytes": op.cost.bytes_moved}
        calls.append(_slice(trace.names[name], "op", start, duration, HOST, thread, facts))
    # If two start together, the longer one is the outer one; the sort is stable, so a module precedes its op.
    return sorted([*modules, *calls], key=lambda event: (event["ts"], -event["dur"]))


def _slice(name: str, category: str, start: int, duration: int, process: int, thread: int, facts: Event) -> Event:
    """Times are in microseconds there."""
    event = {"ph": "X", "name": name, "cat": category, "ts": start / 1000, "dur": duration / 1000}
    return event | {"pid": process, "tid": thread} | ({"args": facts} if facts else {})


@dataclass(frozen=True, slots=True)
class ModuleRange:
    """`inferred` ranges run from a module's first op to its last; they are on a separate thread."""

    path: str
    start_ns: int
    duration_ns: int
    thread: int
    inferred: bool = False


def module_ranges(trace: TraceRecord, ops: Sequence[OpRecord]) -> list[ModuleRange]:
    """TorchScript and exported programs call their modules outside Python: there the ranges come from the ops."""
    ranges = [ModuleRange(trace.names[path], begun, took, thread) for begun, took, path, thread in trace.modules]
    if any(found.path for found in ranges):
        return ranges
    modules = {op.index: op.module for op in ops}
    track = 1 + max((row[3] for row in (*trace.calls, *trace.modules)), default=0)
    running: list[tuple[str, int]] = []
    until = 0
    for start, duration, _, _, index in trace.calls:
        if index not in modules:
            continue
        # The modules around this call: `a`, `a.b`, `a.b.c`. Those that the last call was in too go on.
        parts = modules[index].split(".") if modules[index] else []
        inside = [".".join(parts[: depth + 1]) for depth in range(len(parts))]
        kept = 0
        while kept < min(len(running), len(inside)) and running[kept][0] == inside[kept]:
            kept += 1
        ranges += [ModuleRange(path, begun, until - begun, track, True) for path, begun in running[kept:]]
        running = running[:kept] + [(path, start) for path in inside[kept:]]
        until = start + duration
    return ranges + [ModuleRange(path, begun, until - begun, track, True) for path, begun in running]
