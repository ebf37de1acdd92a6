"""A training step: backward from the outputs with a gradient of ones, then one step of the optimizer.

No loss is invented: where the model returns one (`loss`), the backward pass starts there, else at every output that
needs a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from torchgauge.capture.failures import step_errors
from torchgauge.capture.fake_run import FakeRun
from torchgauge.capture.real import RealRun
from torchgauge.capture.recorder import Recorder
from torchgauge.capture.structure import tensors_in, tensors_within
from torchgauge.errors import InputError
from torchgauge.facts import Allocation, StepMemory

# Of the parameters that got a gradient.
MakeOptimizer = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


def train_step(
    run: FakeRun | RealRun,
    recorder: Recorder,
    output: object,
    parameters: list[torch.nn.Parameter],
    gradient_of: Callable[[torch.Tensor], torch.Tensor],
    make_optimizer: MakeOptimizer,
) -> StepMemory:
    """Run backward and optimizer step under `run`; the gradients to start from are made outside it."""
    roots = gradient_roots(output)
    if not roots:
        raise InputError("nothing to train: no floating-point output depends on a parameter that requires a gradient")
    gradients = [gradient_of(root) for root in roots]
    # The first step makes torch import code that runs ops: it is taken here, outside the run.
    optimizer = make_optimizer([torch.nn.Parameter(torch.empty(0))])
    optimizer.step()
    recorder.begin_backward()
    # Ops of other threads would not be recorded.
    with step_errors(recorder), run, torch.autograd.set_multithreading_enabled(False):
        torch.autograd.backward(roots, gradients)
        recorder.phase = "optimizer"
        trained = [parameter for parameter in parameters if parameter.grad is not None]
        if trained:
            optimizer = make_optimizer(trained)
            optimizer.step()
    return StepMemory(
        optimizer=type(optimizer).__name__,
        saved=tuple(sorted(allocation for _, allocation in recorder.saved)),
        gradients=_allocations(run, [parameter.grad for parameter in trained]),
        optimizer_state=_allocations(run, [list(state.values()) for state in optimizer.state.values()]),
    )


def _allocations(run: FakeRun | RealRun, tensors: object) -> tuple[Allocation, ...]:
    """Tensors that share a storage have one allocation."""
    return tuple(sorted(dict(map(run.storage_of, tensors_in(tensors))).values()))


def gradient_roots(output: object) -> list[torch.Tensor]:
    """The tensors that the backward pass starts from: the model's own loss, else every output that needs a gradient."""
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    found = [loss] if isinstance(loss, torch.Tensor) else tensors_within(output, depth=0)
    return list({id(tensor): tensor for tensor in found if tensor.requires_grad}.values())
