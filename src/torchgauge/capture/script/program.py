"""A graph made ready to run: blocks of steps, each with the values that die with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Step:
    """One node: `run` takes its inputs, after the frame where `takes_frame`, and gives one value or a tuple of several.

    `scope` is the path of the module that the node was inlined from, where a frozen graph still tells.
    """

    run: Callable[..., Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    takes_frame: bool = False
    source: str | None = None
    scope: tuple[str, ...] = ()
    blocks: tuple[Block, ...] = ()
    is_constant: bool = False
    makes_tensors: bool = True
    dead: tuple[int, ...] = ()


@dataclass(slots=True)
class Block:
    parameters: tuple[int, ...]
    results: tuple[int, ...]
    steps: list[Step] = field(default_factory=list)


def free_after_last_use(block: Block) -> None:
    """Note with each step the values of this block that no later step reads: memory is live as long as it is there."""
    owned = {*block.parameters, *(slot for step in block.steps for slot in step.outputs)}
    alive = set(block.results)
    for step in reversed(block.steps):
        touched = {*reads(step), *step.outputs} & owned
        step.dead = tuple(touched - alive)
        alive |= touched
        for inner in step.blocks:
            free_after_last_use(inner)


def reads(step: Step) -> set[int]:
    """All values that a step reads; of those its blocks read, the ones that are made outside them."""
    found = set(step.inputs)
    for block in step.blocks:
        made = {*block.parameters, *(slot for inner in block.steps for slot in inner.outputs)}
        found |= (set(block.results) | reads_of(block.steps)) - made
    return found


def reads_of(steps: Iterable[Step]) -> set[int]:
    return {slot for step in steps for slot in reads(step)}


class Unsupported(Exception):  # noqa: N818 - a signal
    """A node that is not run here: the module has to run in torch's own engine."""
