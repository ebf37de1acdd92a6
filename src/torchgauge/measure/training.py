"""A training step for real: forward, backward, one AdamW step, on a copy of the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch

from torchgauge.capture.training import gradient_roots
from torchgauge.errors import InputError
from torchgauge.measure.subject import Subject

PHASES = ("forward", "backward", "optimizer")


class TrainingStep:
    """Steps of one training; the optimizer keeps its state from step to step, as in a real one."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        trained = [parameter for parameter in subject.model.parameters() if parameter.requires_grad]
        if not trained:
            raise InputError("nothing to train: no parameter requires a gradient")
        self.optimizer = torch.optim.AdamW(trained)

    def run(self) -> None:
        with self._deterministic():
            self._backward(self.subject())
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        self.subject.synchronize()

    def state_bytes(self) -> int:
        """What the optimizer keeps from step to step."""
        kept = (value for state in self.optimizer.state.values() for value in state.values())
        return sum(value.nbytes for value in kept if isinstance(value, torch.Tensor))

    def phases(self) -> dict[str, float]:
        """One step with the device brought to rest between the phases, and how long each took."""
        marks = [perf_counter()]

        def mark() -> None:
            self.subject.synchronize()
            marks.append(perf_counter())

        with self._deterministic():
            output = self.subject()
            mark()
            self._backward(output)
            mark()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            mark()
        return {name: after - before for name, before, after in zip(PHASES, marks, marks[1:], strict=False)}

    def _backward(self, output: Any) -> None:
        roots = gradient_roots(output)
        if not roots:
            raise InputError("nothing to train: no floating output depends on a parameter that requires a gradient")
        torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])

    @contextmanager
    def _deterministic(self) -> Iterator[None]:
        """Backward in the calling thread: in the order of the static ops, and seen by the profiler as one sequence."""
        with torch.autograd.set_multithreading_enabled(False):
            yield
