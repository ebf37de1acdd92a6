"""Measured times of modules: two clock reads around each call on the CPU, while the class-wide call is replaced, and
the ops that ran outside every call that could be timed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from time import perf_counter

from torch import nn
from torch.jit import ScriptModule

from torchgauge.capture.calls import intercept_calls
from torchgauge.capture.paths import ModulePaths
from torchgauge.facts import OpRecord, is_within
from torchgauge.facts.measurements import MeasuredModule
from torchgauge.measure.latency import middle_half, nearest
from torchgauge.measure.profile import OpTime
from torchgauge.source.exported.plain_program import is_plain

# A watched run counts if it took about as long as the median run, within this share; this many are enough.
_NEAR_MEDIAN_SHARE, ENOUGH_RUNS = 0.02, 3
# Share of the watched runs that is used if too few are near: on a machine whose pace changes by a third, half are not.
_NEAREST_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class ModuleTime:
    """`inclusive_s` with its children, `self_s` without, for all `calls` of one run together."""

    inclusive_s: float
    self_s: float
    calls: int


@dataclass(slots=True)
class _Sum:
    inclusive: float = 0.0
    own: float = 0.0
    calls: int = 0


class _Stopwatch:
    """The modules that are running, innermost last, and the sums of one run by identity of the module."""

    def __init__(self) -> None:
        self.sums: dict[int, _Sum] = {}
        self.in_children: list[float] = []
        self.running: dict[int, int] = {}

    def timed(self, module: nn.Module, call: Callable[[], object]) -> object:
        key = id(module)
        depth = self.running.get(key, 0)
        self.running[key] = depth + 1
        self.in_children.append(0.0)
        start = perf_counter()
        try:
            return call()
        finally:
            elapsed = perf_counter() - start
            in_children = self.in_children.pop()
            self.running[key] = depth
            found = self.sums.setdefault(key, _Sum())
            found.own += elapsed - in_children
            # A module that calls itself is inside its own time already.
            found.inclusive += elapsed if depth == 0 else 0.0
            found.calls += 1
            if self.in_children:
                self.in_children[-1] += elapsed


class ModuleWatch:
    """Runs in which every module is timed; `paths` are the modules' paths by identity. Time of other modules (created
    on the fly) counts as their caller's."""

    def __init__(self, paths: dict[int, str]) -> None:
        self.paths = paths
        self._watches: list[_Stopwatch] = []

    @property
    def runs(self) -> int:
        return len(self._watches)

    def run(self, run: Callable[[], object]) -> None:
        watch = _Stopwatch()

        def timed(call: Callable[..., object], module: nn.Module, /, *args: object, **kwargs: object) -> object:
            if id(module) not in self.paths:
                return call(module, *args, **kwargs)
            return watch.timed(module, lambda: call(module, *args, **kwargs))

        with intercept_calls(timed):
            run()
        self._watches.append(watch)

    def times(self, near_s: float | None = None) -> dict[str, ModuleTime]:
        """Means over the runs that took about as long as the median one, or about `near_s`."""
        if near_s is None:
            kept = middle_half(self._watches, _total)
        else:
            kept = self.near(near_s)
            if len(kept) < ENOUGH_RUNS:
                kept = nearest(self._watches, _total, near_s, _NEAREST_SHARE)
        means: dict[str, ModuleTime] = {}
        for key, path in self.paths.items():
            sums = [watch.sums[key] for watch in kept if key in watch.sums]
            inclusive, own = (fmean(s.inclusive for s in sums), fmean(s.own for s in sums)) if sums else (0.0, 0.0)
            means[path] = ModuleTime(inclusive, own, sums[0].calls if sums else 0)
        return means

    def near(self, seconds: float) -> list[_Stopwatch]:
        """The runs that took about this long."""
        return [watch for watch in self._watches if abs(_total(watch) - seconds) <= _NEAR_MEDIAN_SHARE * seconds]


def _total(watch: _Stopwatch) -> float:
    return sum(found.own for found in watch.sums.values())


def time_modules(run: Callable[[], object], paths: dict[int, str], runs: int) -> dict[str, ModuleTime]:
    watch = ModuleWatch(paths)
    for _ in range(runs):
        watch.run(run)
    return watch.times()


FORWARD, OPTIMIZER = "forward", "optimizer"
# By path of the module: its own seconds in each phase.
OwnTimes = dict[str, dict[str, float]]


def module_paths(model: nn.Module) -> dict[int, str]:
    return {id(member.module): member.path for member in ModulePaths(model).members}


def script_roots(model: nn.Module) -> list[str]:
    """The outermost script modules, and exported programs: their inner modules cannot be intercepted."""
    members = ModulePaths(model).members
    scripts = [m.path for m in members if isinstance(m.module, ScriptModule) or is_plain(m.module)]
    return [path for path in scripts if not any(path != other and is_within(path, other) for other in scripts)]


def own_times(
    calls: Mapping[str, ModuleTime], ops: Sequence[OpRecord], times: Mapping[int, OpTime], roots: Sequence[str]
) -> OwnTimes:
    """From the calls' own times, and from ops outside of calls: the backward pass and the optimizer. The call of a
    script module (`roots`) includes the time of all modules inside, which is moved to them."""
    found: OwnTimes = {path: {FORWARD: time.self_s} for path, time in calls.items() if time.calls}
    for op in ops:
        if op.index not in times:
            continue
        root = next((path for path in roots if is_within(op.module, path)), None)
        if op.phase != FORWARD:
            _add(found, op.module, op.phase, times[op.index].time_s)
        elif root is not None and op.module != root:
            _add(found, op.module, FORWARD, times[op.index].time_s)
            _add(found, root, FORWARD, -times[op.index].time_s)
    return found


def _add(times: OwnTimes, path: str, phase: str, seconds: float) -> None:
    """Never negative: under a profiler, the parts may take longer than the whole did without it."""
    phases = times.setdefault(path, {})
    phases[phase] = max(0.0, phases.get(phase, 0.0) + seconds)


def module_rows(own: Mapping[str, float], total: float) -> dict[str, MeasuredModule]:
    """A module's time is its own plus that of the modules below its path, as all its figures are: a list that is never
    called has its members' time. Modules in which nothing was called are left out."""
    return {
        path: {"time_s": seconds, "self_time_s": own.get(path, 0.0), "time_share": seconds / total if total else None}
        for path, seconds in inclusive_sums(own.items()).items()
    }


def inclusive_sums(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    """By path of a module: the sum of its own values and of those of the modules below it."""
    sums: dict[str, float] = {}
    for path, value in values:
        sums[path] = sums.get(path, 0.0) + value
        while path:
            path = path.rpartition(".")[0]
            sums[path] = sums.get(path, 0.0) + value
    return sums
