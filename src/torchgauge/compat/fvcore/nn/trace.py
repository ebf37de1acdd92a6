"""The op calls of one forward pass, each with the modules it ran in."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from torchgauge.capture import Seen
from torchgauge.compat.fvcore.nn.values import Node
from torchgauge.compat.observed import Observer, OpCall, observe, own_error
from torchgauge.errors import TorchgaugeError


class Trace(Observer):
    """`nodes` in the order of execution; `called` are the names of the modules that ran."""

    def __init__(self) -> None:
        self.begin(nn.Module())

    def begin(self, root: nn.Module) -> None:
        self.nodes: list[Node] = []
        self.called: set[str] = set()
        # The first name of a module is the one it is known by.
        self._names = {id(module): name for name, module in root.named_modules()}
        self._running: list[str] = []

    def enter(self, module: nn.Module) -> None:
        # A stranger's ops belong to whoever called it.
        name = self._names.get(id(module), self._running[-1] if self._running else "")
        self._running.append(name)
        self.called.add(name)

    def leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._running.pop()

    def fail(self, module: nn.Module) -> None:
        self._running.pop()

    def op(self, call: OpCall) -> None:
        self.nodes.append(Node(call, tuple(self._running) or ("",)))


def trace(model: nn.Module, inputs: torch.Tensor | tuple[Any, ...]) -> tuple[Trace, Seen]:
    """Run the model in the mode it is in; it raises what the model raises."""
    found = Trace()
    args = inputs if isinstance(inputs, tuple) else (inputs,)
    try:
        return found, observe(model, args, {}, found, whole=True)
    except TorchgaugeError as error:
        raise own_error(error) from None
