"""Groups the steps of a flat graph into the calls they were inlined from."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch

from torchgauge.capture.paths import join
from torchgauge.capture.script.program import Block, Step, reads_of

if TYPE_CHECKING:
    from torchgauge.capture.script.interpreter import Frame


def group_by_scope(block: Block, outer: frozenset[int] = frozenset()) -> None:
    """Replace each run of steps of one module by one step that enters it, runs them and leaves it.

    `outer` are the constants of the blocks around: no inputs of a module.
    """
    constants = [step for step in block.steps if step.is_constant]
    others = [step for step in block.steps if not step.is_constant]
    slots = outer.union(*(step.outputs for step in constants))
    block.steps = constants + _grouped(others, 0, slots, set(block.results))
    for step in others:
        for inner in step.blocks:
            group_by_scope(inner, slots)


def _grouped(steps: list[Step], depth: int, constants: frozenset[int], wanted: set[int]) -> list[Step]:
    paths = iter(_paths(steps, depth))
    groups = [(path, list(group)) for path, group in groupby(steps, lambda _: next(paths))]
    later = set(wanted)
    grouped: list[Step] = []
    for path, group in reversed(groups):
        if path is None:
            grouped.extend(reversed(group))
        else:
            made = {slot for step in group for slot in step.outputs}
            given = tuple(sorted(reads_of(group) - made - constants))
            left = tuple(sorted(made & later))
            inner = _grouped(group, depth + 1, constants, later)
            stage = Step(_runner(path, inner, left), given, (), takes_frame=True)
            grouped.append(stage)
        later |= reads_of(group)
    return grouped[::-1]


def _paths(steps: list[Step], depth: int) -> list[str | None]:
    """The module of each step. Lists and checks that lost theirs belong where the tensors around them do."""
    paths = [step.scope[depth] if len(step.scope) > depth else None for step in steps]
    before: str | None = None
    lost: list[int] = []
    for index, step in enumerate(steps):
        if paths[index] is None and not step.makes_tensors:
            lost.append(index)
            continue
        if paths[index] is not None and paths[index] == before:
            for place in lost:
                paths[place] = before
        before = paths[index]
        lost.clear()
    return paths


def _runner(path: str, steps: list[Step], left: tuple[int, ...]) -> Callable[..., Any]:
    def run(frame: Frame, *args: Any) -> None:
        recorder = frame.interpreter.recorder
        given = _tensors(args)
        previous = recorder.enter_path(join(frame.path, path), given, {})
        try:
            frame.run_steps(steps)
        except BaseException:
            recorder.fail(previous, given, {})
            raise
        results = _tensors(tuple(frame.values[slot] for slot in left))
        recorder.leave_path(previous, results[0] if len(results) == 1 else results)

    return run


def _tensors(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value for value in values if isinstance(value, torch.Tensor))
