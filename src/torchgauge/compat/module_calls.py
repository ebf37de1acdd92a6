"""Real runs of a model that report every module call; nothing is attached to the model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from torchgauge.analysis import Analysis, analyze
from torchgauge.capture.structure import map_tensors
from torchgauge.compat.observed import device_of, every_module_called
from torchgauge.measure import Subject, ready
from torchgauge.source import Candidate


@dataclass(frozen=True, slots=True)
class ModuleCall:
    module: nn.Module
    args: tuple[object, ...]
    kwargs: dict[str, object]
    output: object

    def without_values(self) -> ModuleCall:
        """Costs no memory to keep. Integers stay: models look at their ids, masks and positions."""
        args, kwargs, output = map_tensors((self.args, self.kwargs, self.output), _without_values)
        return replace(self, args=args, kwargs=kwargs, output=output)

    def analyze(self) -> Analysis:
        """The project's own view of this call."""
        given = self.without_values()
        return analyze(self.module, inputs=given.args, kwargs=given.kwargs, weights=False, progress=False)


def _without_values(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("meta") if tensor.is_floating_point() or tensor.is_complex() else tensor


@contextmanager
def running(model: nn.Module, candidate: Candidate, *, evaluate: bool = True) -> Iterator[Subject]:
    """The model ready to run without gradients, in eval mode or in its own modes; restored at the end."""
    modes = [module.training for module in model.modules()]
    with ready(model, candidate, device=device_of(model)) as subject:
        if not evaluate:
            for module, training in zip(subject.model.modules(), modes, strict=True):
                module.training = training
        yield subject


@contextmanager
def observe_calls(modules: Collection[nn.Module], observer: Callable[[ModuleCall], None]) -> Iterator[None]:
    """`observer` gets every call of the modules when it has returned, in this thread, inner ones first; not the calls
    that it makes itself, to analyse what it was given."""
    known = {id(module) for module in modules}
    owner = threading.get_ident()
    is_observing = False

    def hook(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], output: object) -> None:
        nonlocal is_observing
        if id(module) in known and threading.get_ident() == owner and not is_observing:
            is_observing = True
            try:
                observer(ModuleCall(module, args, kwargs, output))
            finally:
                is_observing = False

    handle = register_module_forward_hook(hook, with_kwargs=True)
    try:
        with every_module_called():
            yield
    finally:
        handle.remove()
