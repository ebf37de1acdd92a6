"""Leave no trace: after the block, the model and the random states are as they were, whatever happened inside."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

_CONTAINERS = (dict, list, set)


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Restore attributes, containers, modes and hooks of every module, and all random states, on exit."""
    with ExitStack() as stack:
        stack.enter_context(_random_states())
        for module in model.modules():
            stack.callback(_remember(module))
        yield


@contextmanager
def gradients_kept(model: nn.Module) -> Iterator[None]:
    """Restore the gradients that the parameters had."""
    before = [(parameter, parameter.grad) for parameter in model.parameters() if parameter.is_leaf]
    try:
        yield
    finally:
        for parameter, gradient in before:
            parameter.grad = gradient


def _remember(module: nn.Module) -> Any:
    """A function that puts a module's attributes back, the contents of its own containers included."""
    if isinstance(module, torch.jit.ScriptModule):
        training = module.training
        return lambda: module.train(training) if module.training != training else None
    attributes = dict(module.__dict__)
    contents = [
        (value, _copy(value) if value else []) for value in attributes.values() if isinstance(value, _CONTAINERS)
    ]

    def restore() -> None:
        if module.__dict__.keys() != attributes.keys() or any(
            module.__dict__[name] is not value for name, value in attributes.items()
        ):
            module.__dict__.clear()
            module.__dict__.update(attributes)
        for container, content in contents:
            if not _same(container, content):
                _refill(container, content)

    return restore


def _copy(container: Any) -> Any:
    return list(container.items()) if isinstance(container, dict) else list(container)


def _same(container: Any, content: list[Any]) -> bool:
    if not container and not content:
        return True
    now = _copy(container)
    if len(now) != len(content):
        return False
    if isinstance(container, dict):
        return all(a[0] is b[0] and a[1] is b[1] for a, b in zip(now, content, strict=True))
    return all(a is b for a, b in zip(now, content, strict=True))


def _refill(container: Any, content: list[Any]) -> None:
    container.clear()
    if isinstance(container, list):
        container.extend(content)
    else:
        container.update(content)


@contextmanager
def _random_states() -> Iterator[None]:
    python = random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy is not None else None
    cpu = torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
        torch.set_rng_state(cpu)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
