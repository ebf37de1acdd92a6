"""Memory at the peak of a run, by purpose."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from torchgauge.facts.capture import Allocation, Capture
from torchgauge.facts.op import OpRecord


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes at one moment, right after `op` (None: before the first one, when only the inputs are there).

    `activations` are all other live storages: inputs, results, tensors saved for the backward pass, temporaries.
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
    # Parameters, buffers and the state of the optimizer are the same all the time: the rest decides.
    step, ops = capture.run.step, capture.ops
    rest = [op.live_bytes for op in ops]
    if step is not None:
        rest = list(map(operator.sub, rest, _allocated(step.optimizer_state, len(ops))))
    most = max(rest, default=0)
    moment = 1 + rest.index(most) if most > capture.input_bytes else 0
    return next(memory_over_run(capture, [moment]))


def memory_over_run(capture: Capture, moments: Iterable[int] | None = None) -> Iterator[MemoryUse]:
    """Before the first op, then after each one; or at `moments`, which are numbers of ops that have run."""
    parameters = next(record.param_bytes for record in capture.modules if record.path == "")
    buffers = sum([param.nbytes for param in capture.params if param.is_buffer])
    step, ops = capture.run.step, capture.ops
    state = sum(nbytes for _, nbytes in step.optimizer_state) if step else 0
    gradients = _allocated(step.gradients if step else (), len(ops))
    state_so_far = _allocated(step.optimizer_state if step else (), len(ops))
    for moment in range(len(ops) + 1) if moments is None else moments:
        if moment:
            op, held = ops[moment - 1], gradients[moment - 1]
            activations = op.live_bytes - held - state_so_far[moment - 1]
            yield MemoryUse(op, parameters, buffers, activations, held, state)
        else:
            yield MemoryUse(None, parameters, buffers, capture.input_bytes, 0, state)


def _allocated(allocations: tuple[Allocation, ...], ops: int) -> list[int]:
    """The bytes allocated up to each op."""
    by_op = [0] * ops
    for op, nbytes in allocations:
        by_op[max(op, 0)] += nbytes
    return list(accumulate(by_op))
