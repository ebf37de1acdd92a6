"""Measured times of modules: from their own calls, and from the ops that ran in no call that could be timed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn
from torch.jit import ScriptModule

from torchgauge.capture.paths import ModulePaths
from torchgauge.measure.module_times import ModuleTime
from torchgauge.measure.op_times import OpTime
from torchgauge.records import OpRecord
from torchgauge.source.exported.plain_code import is_plain

FORWARD = "forward"
_NEVER = ModuleTime(0.0, 0.0, 0)


def module_paths(model: nn.Module) -> dict[int, str]:
    return {id(member.module): member.path for member in ModulePaths(model).members}


def script_roots(model: nn.Module) -> list[str]:
    """The script modules that are in no other, and exported programs: what is inside them is called without us."""
    members = ModulePaths(model).members
    scripts = [m.path for m in members if isinstance(m.module, ScriptModule) or is_plain(m.module)]
    return [path for path in scripts if not any(path != other and _is_within(path, other) for other in scripts)]


def with_op_times(
    calls: Mapping[str, ModuleTime], ops: Sequence[OpRecord], times: Mapping[int, OpTime], roots: Sequence[str]
) -> dict[str, ModuleTime]:
    """The calls' times, and those of ops outside them: the backward pass and the optimizer run in no call, and the
    call of a script module (`roots`) has the time of all modules inside, which is theirs."""
    found = dict(calls)
    for op in ops:
        if op.index not in times:
            continue
        root = next((path for path in roots if _is_within(op.module, path)), None)
        if op.phase != FORWARD:
            _add(found, op.module, times[op.index].time_s)
        elif root is not None and op.module != root:
            _add(found, op.module, times[op.index].time_s)
            _add(found, root, -times[op.index].time_s)
    return found


def _add(times: dict[str, ModuleTime], path: str, seconds: float) -> None:
    """Under a profiler the parts may take longer than the whole did without it; no time is negative."""
    before = times.get(path, _NEVER)
    times[path] = replace(before, self_s=max(0.0, before.self_s + seconds), calls=max(1, before.calls))


def _is_within(path: str, folder: str) -> bool:
    return not folder or path == folder or path.startswith(f"{folder}.")


def module_rows(times: Mapping[str, ModuleTime], total: float) -> dict[str, dict[str, Any]]:
    """A module's time is its own plus that of the modules below its path, as all its figures are: a list that is never
    called has its members' time. Modules in which nothing was called are left out."""
    inclusive: dict[str, float] = {}
    for path, time in times.items():
        if time.calls:
            for place in (path, *_above(path)):
                inclusive[place] = inclusive.get(place, 0.0) + time.self_s
    return {
        path: {
            "time_s": seconds,
            "self_time_s": times.get(path, _NEVER).self_s,
            "time_share": seconds / total if total else None,
        }
        for path, seconds in inclusive.items()
    }


def _above(path: str) -> Iterator[str]:
    while path:
        path = path.rpartition(".")[0]
        yield path


def module_phases(
    calls: Mapping[str, ModuleTime], ops: Sequence[OpRecord], times: Mapping[int, OpTime]
) -> dict[str, dict[str, float]]:
    """A training step: each module's own time by phase."""
    found = {path: {FORWARD: time.self_s} for path, time in calls.items() if time.calls}
    for op in ops:
        if op.phase != FORWARD and op.index in times:
            phases = found.setdefault(op.module, {})
            phases[op.phase] = phases.get(op.phase, 0.0) + times[op.index].time_s
    return found
