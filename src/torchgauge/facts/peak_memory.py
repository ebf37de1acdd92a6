"""Memory at the peak of a run, by purpose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from torchgauge.facts.capture import Allocation, Capture
from torchgauge.facts.op import OpRecord


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes at one moment, right after `op` (None: before the first one, when only the inputs are there).

    `activations` are all live storages that are none of the others: inputs, results, what is saved for the backward
    pass, temporaries.
    """

    op: OpRecord | None
    parameters: int
    buffers: int
    activations: int
    gradients: int = 0
    optimizer_state: int = 0

    @property
    def total(self) -> int:
        return self.parameters + self.buffers + self.activations + self.gradients + self.optimizer_state


def memory_at_peak(capture: Capture) -> MemoryUse | None:
    """The moment when most is in memory. Of training it is that of every step after the first, when the optimizer
    already has its state; gradients are freed before each forward pass, as `zero_grad()` does.

    None without code, and for training runs that were saved before gradients were recorded.
    """
    if not capture.has_code or (capture.run.train and capture.run.step is None):
        return None
    return max(memory_over_run(capture), key=lambda use: use.total)


def memory_over_run(capture: Capture) -> Iterator[MemoryUse]:
    """Before the first op, then after each one."""
    parameters = next(record.param_bytes for record in capture.modules if record.path == "")
    buffers = sum(param.nbytes for param in capture.params if param.is_buffer)
    step, ops = capture.run.step, capture.ops
    state = sum(nbytes for _, nbytes in step.optimizer_state) if step else 0
    yield MemoryUse(None, parameters, buffers, capture.input_bytes, 0, state)
    gradients = _allocated(step.gradients if step else (), len(ops))
    state_so_far = _allocated(step.optimizer_state if step else (), len(ops))
    for op, held, first in zip(ops, gradients, state_so_far, strict=True):
        yield MemoryUse(op, parameters, buffers, op.live_bytes - held - first, held, state)


def _allocated(allocations: tuple[Allocation, ...], ops: int) -> Iterator[int]:
    """By op, the bytes allocated until then."""
    by_op = [0] * ops
    for op, nbytes in allocations:
        by_op[max(op, 0)] += nbytes
    return accumulate(by_op)
