"""Leave no trace of runs on the model itself: after the block it is as it was, whatever happened inside."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from torchgauge.capture.process_state import process_state_kept

_CONTAINERS = (dict, list, set)


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Restore attributes, containers, modes and hooks of every module, and the settings of the process, on exit."""
    with ExitStack() as stack:
        stack.enter_context(process_state_kept())
        restores = [_remember(module) for module in model.modules()]
        stack.callback(_call_all, restores)
        yield


def _call_all(functions: list[Callable[[], object]]) -> None:
    for function in functions:
        function()


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
        if not hasattr(module, "training"):  # frozen; it is given one when the mode is set
            return lambda: module.__dict__.pop("training", None)
        training = module.training
        return lambda: module.train(training) if module.training != training else None
    attributes = dict(module.__dict__)
    identities = tuple(map(id, attributes.values()))
    containers = [value for value in attributes.values() if isinstance(value, _CONTAINERS)]
    filled = [(container, _contents(container)) for container in containers if container]

    def restore() -> None:
        now = module.__dict__
        if tuple(map(id, now.values())) != identities or now.keys() != attributes.keys():
            now.clear()
            now.update(attributes)
        for container, content in filled:
            if not _same(_contents(container), content):
                _refill(container, content)
        if sum(map(bool, containers)) > len(filled):
            held = {id(container) for container, _ in filled}
            for container in containers:
                if id(container) not in held:  # it was empty
                    container.clear()

    return restore


def _contents(container: Any) -> list[Any]:
    """The items of a container, keys before values: a flat list that compares by identity."""
    return [*container.keys(), *container.values()] if isinstance(container, dict) else list(container)


def _same(now: list[Any], before: list[Any]) -> bool:
    return len(now) == len(before) and all(map(operator.is_, now, before))


def _refill(container: Any, content: list[Any]) -> None:
    container.clear()
    if isinstance(container, list):
        container.extend(content)
    elif isinstance(container, dict):
        half = len(content) // 2
        container.update(zip(content[:half], content[half:], strict=True))
    else:
        container.update(content)
