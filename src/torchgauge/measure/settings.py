"""Settings of a measurement: from arguments, environment variables or defaults, in this order. Threads, and how a run
scales with them."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, TypeVar

import torch

from torchgauge.errors import UsageError
from torchgauge.facts import OpRecord
from torchgauge.measure.latency import Budget, time_runs
from torchgauge.measure.module_times import module_paths
from torchgauge.measure.parts import Measurement, repeats
from torchgauge.measure.profile import OpTime, join, op_times, profile_runs

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Scaling


# torch crashes if the system refuses to start this many.
MAX_THREADS = max(1024, os.cpu_count() or 1)
# Each number of threads gets this share of the time for the undisturbed runs.
_POINT_SHARE = 0.15
_PROFILED_RUNS = 3
# Kinds of ops with a smaller share of the time say nothing about threads.
_MIN_TIME_SHARE = 0.01


@contextmanager
def thread_count(threads: int | None) -> Iterator[None]:
    """torch's intra-op threads for the length of the block; None leaves them."""
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        if threads is not None:
            torch.set_num_threads(before)


def thread_counts(most: int) -> list[int]:
    """1, 2, 4, … and the most."""
    counts = [1]
    while counts[-1] * 2 < most:
        counts.append(counts[-1] * 2)
    return counts if counts[-1] == most else [*counts, most]


def scaling(run: Callable[[], object], most: int, budget: Budget) -> list[Scaling]:
    """The run with every number of threads: time, speed-up over one thread, and efficiency."""
    rows: list[Scaling] = []
    for threads in thread_counts(most):
        with thread_count(threads):
            timed = time_runs(run, budget)
        if timed.failure is not None:
            raise timed.failure
        seconds = median(timed.seconds)
        speedup = rows[0]["median_s"] / seconds if rows else 1.0
        rows.append({"threads": threads, "median_s": seconds, "speedup": speedup, "efficiency": speedup / threads})
    return rows


def serial_share(one: float, many: float, threads: int) -> float | None:
    """The share that does not run in parallel, by Amdahl's law: `one` and `many` are the times with 1 and `threads`."""
    if threads < 2 or one <= 0:
        return None
    share = (many / one - 1 / threads) / (1 - 1 / threads)
    return min(1.0, max(0.0, share))


def measure_scaling(work: Measurement) -> None:
    """The run with 1, 2, … threads, and the share of each kind of op that does not get faster with them."""
    most = torch.get_num_threads()
    budget = replace(work.plan.budget, seconds=_POINT_SHARE * work.plan.budget.seconds)
    rows = scaling(work.run, most, budget)
    figures = work.figures["threads"] = {**(work.figures["threads"] or {}), "scaling": rows}
    runs = repeats(rows[0]["median_s"], work.plan.budget, most=_PROFILED_RUNS)
    with thread_count(1):
        one = _op_times(work, runs)
    figures["serial_share"] = serial_shares(work.ops, one, _op_times(work, runs), most)


def _op_times(work: Measurement, runs: int) -> dict[int, OpTime]:
    found = profile_runs(work.run, module_paths(work.subject.model), runs, device=work.subject.device)
    return op_times([join(work.ops, run) for run in found], on_device=work.on_device)


def serial_shares(
    ops: Sequence[OpRecord], one: Mapping[int, OpTime], many: Mapping[int, OpTime], threads: int
) -> dict[str, float | None]:
    """By kind of op, the slowest first, without kinds that take almost no time."""
    alone, together = defaultdict[str, float](float), defaultdict[str, float](float)
    for op in ops:
        if op.index in one and op.index in many:
            alone[op.category] += one[op.index].time_s
            together[op.category] += many[op.index].time_s
    whole = sum(alone.values())
    return {
        category: serial_share(alone[category], together[category], threads)
        for category in sorted(alone, key=lambda category: -alone[category])
        if alone[category] > _MIN_TIME_SHARE * whole
    }


T = TypeVar("T")

_THREADS = "TORCHGAUGE_THREADS"
_MEMORY_FRACTION = "TORCHGAUGE_MEMORY_FRACTION"
_BUDGET = "TORCHGAUGE_BUDGET"
_PROFILE_LEVEL = "TORCHGAUGE_PROFILE_LEVEL"

# Finest level that is timed: the whole model, its modules, its ops.
LATENCY, MODULES, OPS = "latency", "modules", "ops"
LEVELS = (LATENCY, MODULES, OPS)

# The C++ analyser's variables, used for a setting that neither an argument nor a variable of ours gives.
# Its levels are numbers: 0 is the first of ours, from 2 on the last.
_CPP_MEMORY_FRACTION = "PYTORCH_CUDA_MEMORY_FRACTION"
_CPP_PROFILE_LEVEL = "PYTORCH_PROFILER_LEVEL"


@dataclass(frozen=True, slots=True)
class Settings:
    """`threads` None keeps torch's number; `memory_fraction` is of a CUDA device's memory, None for all of it;
    `budget_s` is for the undisturbed runs; `profile_level` None follows from the request. `notes` name settings that
    come from the variables of another tool."""

    threads: int | None = None
    memory_fraction: float | None = None
    budget_s: float = Budget().seconds
    profile_level: str | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        known = self.threads is None or (isinstance(self.threads, int) and 1 <= self.threads <= MAX_THREADS)
        _require(known, "threads", _THREADS, f"a whole number from 1 to {MAX_THREADS}", self.threads)
        fraction = self.memory_fraction
        in_range = fraction is None or (isinstance(fraction, int | float) and 0 < fraction <= 1)
        _require(in_range, "memory_fraction", _MEMORY_FRACTION, "a number above 0 and at most 1", fraction)
        in_range = isinstance(self.budget_s, int | float) and 0 < self.budget_s < float("inf")
        _require(in_range, "budget_s", _BUDGET, "a number of seconds above 0", self.budget_s)
        known = self.profile_level is None or self.profile_level in LEVELS
        _require(known, "profile_level", _PROFILE_LEVEL, f"one of {', '.join(LEVELS)}", self.profile_level)

    @property
    def budget(self) -> Budget:
        return Budget(seconds=self.budget_s)

    def level(self, *, profile: bool) -> str:
        return self.profile_level or (OPS if profile else MODULES)

    def figures(self, *, profile: bool) -> dict[str, object]:
        """Plain JSON: `measurements.settings`; the notes are among those of the measurements."""
        figures = asdict(self) | {"profile_level": self.level(profile=profile)}
        del figures["notes"]
        return figures


def _require(holds: bool, name: str, variable: str, what: str, value: object) -> None:
    if not holds:
        raise UsageError(f"{name} ({variable}) must be {what}, not {value!r}")


def read_settings(
    *,
    threads: int | None = None,
    memory_fraction: float | None = None,
    budget_s: float | None = None,
    profile_level: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    said = os.environ if environ is None else environ
    budget = _first(budget_s, said, _BUDGET, float)
    fraction = _first(memory_fraction, said, _MEMORY_FRACTION, float)
    level = _first(profile_level, said, _PROFILE_LEVEL, str)
    notes = []
    if fraction is None and (fraction := _first(None, said, _CPP_MEMORY_FRACTION, float)) is not None:
        notes.append(f"{_CPP_MEMORY_FRACTION}={fraction:g} is used as --memory-fraction {fraction:g}")
    if level is None and (number := _first(None, said, _CPP_PROFILE_LEVEL, int)) is not None:
        level = LEVELS[min(max(number, 0), len(LEVELS) - 1)]
        notes.append(f"{_CPP_PROFILE_LEVEL}={number} is used as --profile-level {level}")
    return Settings(
        threads=_first(threads, said, _THREADS, int),
        memory_fraction=fraction,
        budget_s=Budget().seconds if budget is None else budget,
        profile_level=level,
        notes=tuple(notes),
    )


def _first(given: T | None, said: Mapping[str, str], variable: str, parse: Callable[[str], T]) -> T | None:
    if given is not None or not said.get(variable):
        return given
    try:
        return parse(said[variable].strip())
    except ValueError as error:
        raise UsageError(f"the environment variable {variable} is not a number: '{said[variable]}'") from error


@contextmanager
def applied(settings: Settings, device: torch.device) -> Iterator[None]:
    """Restored when the block ends."""
    with ExitStack() as stack:
        stack.enter_context(thread_count(settings.threads))
        if settings.memory_fraction is not None and device.type == "cuda":
            # Before 2.8 torch does not expose the setting; assume all of the memory.
            read: Callable[[torch.device], float] | None = getattr(torch.cuda, "get_per_process_memory_fraction", None)
            before = read(device) if read else 1.0
            stack.callback(torch.cuda.set_per_process_memory_fraction, before, device)
            torch.cuda.set_per_process_memory_fraction(settings.memory_fraction, device)
        yield
