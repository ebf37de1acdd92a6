"""Measured times of modules: from their own calls, and from the ops that ran in no call that could be timed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn
from torch.jit import ScriptModule

from torchgauge.capture.paths import ModulePaths
from torchgauge.facts import OpRecord
from torchgauge.measure.module_times import ModuleTime
from torchgauge.measure.op_times import OpTime
from torchgauge.source.exported.plain_program import is_plain

FORWARD, OPTIMIZER = "forward", "optimizer"
# By path of the module: its own seconds in each phase.
OwnTimes = dict[str, dict[str, float]]


def module_paths(model: nn.Module) -> dict[int, str]:
    return {id(member.module): member.path for member in ModulePaths(model).members}


def script_roots(model: nn.Module) -> list[str]:
    """The script modules that are in no other, and exported programs: what is inside them is called without us."""
    members = ModulePaths(model).members
    scripts = [m.path for m in members if isinstance(m.module, ScriptModule) or is_plain(m.module)]
    return [path for path in scripts if not any(path != other and _is_within(path, other) for other in scripts)]


def own_times(
    calls: Mapping[str, ModuleTime], ops: Sequence[OpRecord], times: Mapping[int, OpTime], roots: Sequence[str]
) -> OwnTimes:
    """Of the calls' own times, and of ops outside them: the backward pass and the optimizer run in no call, and the
    call of a script module (`roots`) has the time of all modules inside, which is theirs."""
    found: OwnTimes = {path: {FORWARD: time.self_s} for path, time in calls.items() if time.calls}
    for op in ops:
        if op.index not in times:
            continue
        root = next((path for path in roots if _is_within(op.module, path)), None)
        if op.phase != FORWARD:
            _add(found, op.module, op.phase, times[op.index].time_s)
        elif root is not None and op.module != root:
            _add(found, op.module, FORWARD, times[op.index].time_s)
            _add(found, root, FORWARD, -times[op.index].time_s)
    return found


def _add(times: OwnTimes, path: str, phase: str, seconds: float) -> None:
    """Under a profiler the parts may take longer than the whole did without it; no time is negative."""
    phases = times.setdefault(path, {})
    phases[phase] = max(0.0, phases.get(phase, 0.0) + seconds)


def _is_within(path: str, folder: str) -> bool:
    return not folder or path == folder or path.startswith(f"{folder}.")


def module_rows(own: Mapping[str, float], total: float) -> dict[str, dict[str, Any]]:
    """A module's time is its own plus that of the modules below its path, as all its figures are: a list that is never
    called has its members' time. Modules in which nothing was called are left out."""
    inclusive: dict[str, float] = {}
    for path, seconds in own.items():
        for place in (path, *_above(path)):
            inclusive[place] = inclusive.get(place, 0.0) + seconds
    return {
        path: {
            "time_s": seconds,
            "self_time_s": own.get(path, 0.0),
            "time_share": seconds / total if total else None,
        }
        for path, seconds in inclusive.items()
    }


def _above(path: str) -> Iterator[str]:
    while path:
        path = path.rpartition(".")[0]
        yield path
