"""Whether a run fits on a device: its events replayed through the allocator, plus the memory that CUDA uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from typing import NamedTuple

from torchgauge.facts import Bounds, MemoryMoment, OpRecord
from torchgauge.facts.predictions import Verdict
from torchgauge.predict.allocator import AllocatorSettings, Block, CachingAllocator, OutOfMemory, smallest_limit
from torchgauge.predict.devices import Device
from torchgauge.predict.steps import OP, Trace

CLASSES = (
    "parameters", "buffers", "inputs", "gradients", "optimizer_state", "activations", "temporaries", "workspaces",
    "slack",
)  # fmt: skip

COURSE_POINTS = 240

# Memory of a process outside the allocator: the context with torch's kernels, then each thread that calls cuBLAS.
# Measured on the H200 (driver 580, torch 2.11.0+cu130): 661 MB without cuBLAS, 729 in inference, 804 to 808 in
# training.
CONTEXT_BYTES = 661454848
CUBLAS_CONTEXT_BYTES = {"forward": 67108864, "backward": 75497472}
# For chips that were not measured: drivers and architectures differ (400 to 900 MB are reported).
CONTEXT_RANGE = (0.6, 1.3)
# The largest error of predictions on the measured device, apart from unknown workspaces; a multiple for others.
ALLOCATED_MARGIN, RESERVED_MARGIN = 0.01, 0.03
_SEGMENT_BYTES = 24 << 20  # small models are off by about one segment: the allocator takes 20 MiB for 1 to 10


@dataclass(frozen=True, slots=True)
class Replay:
    """Peaks of a steady step."""

    before_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    by_class: Mapping[str, int] = field(default_factory=dict)
    holders: tuple[tuple[str, int], ...] = ()
    timeline: tuple[MemoryMoment, ...] = ()
    peak: MemoryMoment = field(default_factory=MemoryMoment)
    course: Mapping[str, list[int]] = field(default_factory=dict)  # of the classes over the step


def replay_steps(
    trace: Trace, settings: AllocatorSettings, *, sizes: Mapping[int, int] | None = None, detail: bool = False
) -> Replay:
    """Three steps, the third after `empty_cache()`, as the figures are defined. `sizes` replaces some by number."""
    allocator = CachingAllocator(settings)
    watch = _Watch(trace, allocator) if detail else None
    held: dict[int, Block | None] = {}
    for kind, name, nbytes in trace.placed:
        allocator.allocate(nbytes)
        if watch:
            watch.place(kind, name, nbytes)
    first, steady = trace.steps
    if watch is None and not settings.expandable_segments:
        first = _without_passing(first)
    _run(first, allocator, held, sizes or {}, watch, is_last=False)
    # A step that frees exactly what it allocates changes only the allocator's cache.
    if settings.expandable_segments or not _is_balanced(steady):
        _run(steady, allocator, held, sizes or {}, watch, is_last=False)
    allocator.empty_cache()
    before = allocator.allocated_bytes
    allocator.reset_peaks()
    _run(steady, allocator, held, sizes or {}, watch, is_last=True)
    peaks = before, allocator.peak_allocated_bytes, allocator.peak_reserved_bytes
    return Replay(*peaks) if watch is None else watch.found(*peaks)


def _without_passing(events: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The events without those after the last allocation that a step keeps (often a cuBLAS workspace, at its first
    matmul): memory that is freed again only passes through segments, which `empty_cache` releases."""
    places: dict[int, int] = {}
    for place, (number, nbytes) in enumerate(events):
        if number == OP:
            continue
        if nbytes >= 0:
            places[number] = place
        else:
            places.pop(number, None)
    end = max(places.values(), default=-1) + 1
    taken = {number for number, nbytes in events[:end] if nbytes >= 0}
    return [*events[:end], *(event for event in events[end:] if event[1] < 0 and event[0] in taken)]


def _is_balanced(events: list[tuple[int, int]]) -> bool:
    """Whether a step frees all that it takes, and nothing else."""
    taken: set[int] = set()
    for number, nbytes in events:
        if number == OP:
            continue
        if nbytes >= 0:
            taken.add(number)
        elif number in taken:
            taken.remove(number)
        else:
            return False
    return not taken


def replay_graph(
    trace: Trace, settings: AllocatorSettings, *, sizes: Mapping[int, int] | None = None, detail: bool = False
) -> Replay:
    """A step as a CUDA graph, captured as torch's documentation recommends: three steps on a side stream, then the
    capture into a private pool. The segments stay reserved; results and gradients stay allocated."""
    warmed = _warm_up(trace, CachingAllocator(settings), sizes or {})
    pool, held = CachingAllocator(settings), dict[int, Block | None]()
    watch = _Watch(trace, _Sum((warmed, pool))) if detail else None
    for kind, name, nbytes in trace.placed:
        if watch:
            watch.place(kind, name, nbytes)
    _run(captured_events(trace), pool, held, sizes or {}, watch, is_last=True)
    before, reserved = warmed.allocated_bytes, warmed.reserved_bytes + pool.peak_reserved_bytes
    peaks = before, before + pool.allocated_bytes, reserved
    return Replay(*peaks) if watch is None else watch.found(*peaks)


def _warm_up(trace: Trace, allocator: CachingAllocator, sizes: Mapping[int, int]) -> CachingAllocator:
    held: dict[int, Block | None] = {}
    for _, _, nbytes in trace.placed:
        allocator.allocate(nbytes)
    for step in (0, 1, 1):
        _run(trace.steps[step], allocator, held, sizes, None, is_last=False, stream=1)
    allocator.empty_cache()
    return allocator


def captured_events(trace: Trace) -> list[tuple[int, int]]:
    """A steady step; cuBLAS takes workspaces for the stream of the capture, and results and gradients stay."""
    freed = {number for number, nbytes in trace.steps[0] if nbytes < 0}
    workspaces = [
        (number, nbytes)
        for number, nbytes in trace.steps[0]
        if nbytes > 0 and number != OP and trace.classes.get(number) == "workspaces" and number not in freed
    ]
    stays = {number for number, kind in trace.classes.items() if kind in ("results", "gradients")}
    return [*workspaces, *(event for event in trace.steps[1] if event[1] >= 0 or event[0] not in stays)]


class _Sum(NamedTuple):
    """Several allocators as one."""

    parts: tuple[CachingAllocator, ...]

    @property
    def allocated_bytes(self) -> int:
        return sum(part.allocated_bytes for part in self.parts)

    @property
    def reserved_bytes(self) -> int:
        return sum(part.reserved_bytes for part in self.parts)


def _run(
    events: list[tuple[int, int]],
    allocator: CachingAllocator,
    held: dict[int, Block | None],
    sizes: Mapping[int, int],
    watch: _Watch | None,
    is_last: bool,
    stream: int = 0,
) -> None:
    for number, nbytes in events:
        if number == OP:
            if watch is not None:
                watch.start(nbytes, is_last)
        elif nbytes > 0:
            held[number] = allocator.allocate(sizes.get(number, nbytes), stream)
            if watch is not None:
                watch.take(number, sizes.get(number, nbytes), is_last)
        elif nbytes < 0 and number in held:
            allocator.free(held.pop(number))
            if watch is not None:
                watch.free(number)


class _Watch:
    """Which modules hold memory at the peak, and the course of the last step. Reserved memory stays reserved, so the
    rest of the reserved peak is slack."""

    def __init__(self, trace: Trace, allocator: CachingAllocator | _Sum) -> None:
        self._trace, self._allocator = trace, allocator
        self._live: dict[int, tuple[str, str, int]] = {}
        self._placed: list[tuple[str, str, int]] = []
        self._op: OpRecord | None = None
        self._most = -1
        self._at_peak: list[tuple[str, str, int]] = []
        self._rows: list[MemoryMoment] = []
        self._peak: MemoryMoment = {}
        self._now: Counter[str] = Counter()
        self._course: list[Counter[str]] = []  # of each row, when it has the most

    def place(self, kind: str, name: str, nbytes: int) -> None:
        self._placed.append((kind, name.rpartition(".")[0], nbytes))
        self._now[kind] += nbytes

    def start(self, index: int, is_last: bool) -> None:
        self._op = self._trace.ops[index] if index < len(self._trace.ops) else None
        if is_last and self._op is not None:
            self._rows.append(
                {
                    "index": index,
                    "phase": self._op.phase,
                    "op": self._op.op,
                    "module": self._op.module,
                    "allocated_bytes": self._allocator.allocated_bytes,
                    "reserved_bytes": self._allocator.reserved_bytes,
                }
            )
            self._course.append(self._now.copy())

    def take(self, number: int, nbytes: int, is_last: bool) -> None:
        kind = self._trace.classes.get(number)
        if kind is None or kind == "results":
            kind = "activations" if self._op is not None and self._op.phase == "forward" else "temporaries"
        self._live[number] = (kind, self._op.module if self._op is not None else "", nbytes)
        self._now[kind] += nbytes
        if not is_last:
            return
        allocator = self._allocator
        if self._rows:
            row = self._rows[-1]
            if allocator.allocated_bytes >= row["allocated_bytes"]:
                self._course[-1] = self._now.copy()
            row["allocated_bytes"] = max(row["allocated_bytes"], allocator.allocated_bytes)
            row["reserved_bytes"] = max(row["reserved_bytes"], allocator.reserved_bytes)
        if allocator.allocated_bytes > self._most:
            self._most = allocator.allocated_bytes
            self._at_peak = list(self._live.values())
            self._peak = {**self._rows[-1], "allocated_bytes": self._most} if self._rows else {}

    def free(self, number: int) -> None:
        kind, _, nbytes = self._live.pop(number, ("", "", 0))
        self._now[kind] -= nbytes

    def found(self, before: int, allocated: int, reserved: int) -> Replay:
        totals = dict.fromkeys(CLASSES, 0)
        holders: Counter[str] = Counter()
        live = self._at_peak or list(self._live.values())
        for kind, module, nbytes in (*self._placed, *live):
            totals[kind] += nbytes
            if kind != "inputs":
                holders[module] += nbytes
        totals["slack"] = reserved - sum(totals.values())
        return Replay(
            before,
            allocated,
            reserved,
            totals,
            tuple(holders.most_common(10)),
            tuple(self._rows),
            self._peak,
            self._sampled_course(),
        )

    def _sampled_course(self) -> dict[str, list[int]]:
        """The highest moment of each part of the step."""
        count = len(self._course)
        ends = [count * place // COURSE_POINTS for place in range(COURSE_POINTS + 1)]
        stretches = [range(start, end) for start, end in pairwise(ends) if end > start]
        highest = [max(stretch, key=lambda row: sum(self._course[row].values())) for stretch in stretches]
        kinds = [kind for kind in CLASSES if any(self._course[row][kind] for row in highest)]
        return {kind: [self._course[row][kind] for row in highest] for kind in kinds} | {
            "reserved": [self._rows[row]["reserved_bytes"] for row in highest]
        }


def succeeds_under(trace: Trace, settings: AllocatorSettings, limit: int, *, is_graph: bool = False) -> bool:
    """Whether three steps succeed if at most `limit` can be reserved; cached segments are released when needed."""
    allocator = CachingAllocator(settings, limit)
    held: dict[int, Block | None] = {}
    try:
        if is_graph:
            rest = limit - _warm_up(trace, allocator, {}).reserved_bytes
            _run(captured_events(trace), CachingAllocator(settings, rest), held, {}, None, False)
            return True
        for _, _, nbytes in trace.placed:
            allocator.allocate(nbytes)
        for step in (0, 1, 1):
            _run(trace.steps[step], allocator, held, {}, None, False)
    except OutOfMemory:
        return False
    return True


@dataclass
class Prediction:
    """The memory of one run on one device."""

    device: Device
    trace: Trace
    settings: AllocatorSettings
    is_graph: bool
    replay: Replay
    _required: int | None = None

    @classmethod
    def of(
        cls, trace: Trace, device: Device, settings: AllocatorSettings, *, is_graph: bool = False, detail: bool = True
    ) -> Prediction:
        replay = replay_graph if is_graph else replay_steps
        return cls(device, trace, settings, is_graph, replay(trace, settings, detail=detail))

    @cached_property
    def _replays(self) -> tuple[Replay, ...]:
        """The likely replay, and those with the smallest and the largest workspaces."""
        if not self.trace.workspace_range:
            return (self.replay,)
        replay = partial(replay_graph if self.is_graph else replay_steps, self.trace, self.settings)
        spans = self.trace.workspace_range
        low, high = (replay(sizes={number: span[end] for number, span in spans.items()}) for end in (0, 1))
        return self.replay, low, high

    @property
    def allocated_bytes(self) -> int:
        return self.replay.allocated_bytes

    @property
    def reserved_bytes(self) -> int:
        return self.replay.reserved_bytes

    @property
    def context_bytes(self) -> int:
        return CONTEXT_BYTES + sum(CUBLAS_CONTEXT_BYTES[thread] for thread in self.trace.cublas_threads)

    @property
    def used_bytes(self) -> int:
        return self.reserved_bytes + self.context_bytes

    def _spans(self) -> tuple[Bounds, Bounds, Bounds]:
        """Bounds of the allocated and the reserved memory, and of the context."""
        times = self.device.margin_times
        low, high = (1.0, 1.0) if self.device.is_measured else CONTEXT_RANGE
        allocated = self._around("allocated_bytes", ALLOCATED_MARGIN * times, 0)
        reserved = self._around("reserved_bytes", RESERVED_MARGIN * times, _SEGMENT_BYTES * times)
        return (
            allocated,
            Bounds(max(reserved.low, allocated.low), reserved.high),  # what is allocated is reserved
            Bounds(int(self.context_bytes * low), int(self.context_bytes * high)),
        )

    @property
    def bounds(self) -> dict[str, Bounds]:
        allocated, reserved, context = self._spans()
        return {
            "allocated_bytes": allocated,
            "reserved_bytes": reserved,
            "used_bytes": Bounds(reserved.low + context.low, reserved.high + context.high),
            "required_bytes": self._required_span(allocated),
        }

    def _required_span(self, allocated: Bounds) -> Bounds:
        """Scaled like the bounds of the allocated memory."""
        ratio = self.required_bytes / max(self.allocated_bytes, 1)
        return Bounds(int(allocated.low * ratio), int(allocated.high * ratio))

    def _around(self, name: str, margin: float, least: int) -> Bounds:
        """The range of the three replays, widened by a share of them or by the least number of bytes."""
        values = [getattr(replay, name) for replay in self._replays]
        low, high = min(values), max(values)
        return Bounds(int(low - max(low * margin, least)), int(high + max(high * margin, least)))

    @property
    def required_bytes(self) -> int:
        """The smallest limit on reserved memory under which the run succeeds, to 2 MiB."""
        if self._required is None:
            succeeds = partial(succeeds_under, self.trace, self.settings, is_graph=self.is_graph)
            placed = sum(self.settings.round(nbytes) for _, _, nbytes in self.trace.placed)
            low = max(placed, int(self.allocated_bytes * 0.98))
            high = max(self.reserved_bytes, low)
            while not succeeds(high):  # the first step may take more than the third
                high = int(high * 1.05) + (2 << 20)
            self._required = smallest_limit(succeeds, low, high)
        return self._required

    @property
    def verdict(self) -> Verdict:
        """The search for the required memory is skipped if the other figures decide, and everything else if twice as
        much would fit: no workspace is nearly that large."""
        capacity = self.device.capacity_bytes
        workspace = max((most for _, most in self.trace.workspace_range.values()), default=0)
        if 2 * (self.used_bytes + workspace) <= capacity:
            return "fits"
        allocated, reserved, context = self._spans()
        if reserved.high + context.high <= capacity:
            return "fits"
        if allocated.low + context.low > capacity:
            return "does not fit"
        required = self._required_span(allocated)
        if required.high + context.high <= capacity:
            return "fits"
        return "does not fit" if required.low + context.low > capacity else "too close"

    @property
    def free_bytes(self) -> int:
        return self.device.capacity_bytes - self.used_bytes
