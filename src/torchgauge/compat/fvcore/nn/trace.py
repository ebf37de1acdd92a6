"""The op calls of one forward pass, each with the modules it ran in."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from torchgauge import capture
from torchgauge.compat.fvcore.nn.values import Node, function_node, op_node
from torchgauge.compat.observed import FunctionCall, Observer, OpCall, observe, own_error
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
        # The nodes of what autograd functions are inside.
        self._outside: list[list[Node]] = []

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
        self.nodes.append(op_node(call, tuple(self._running) or ("",)))

    def enter_function(self) -> None:
        self._outside.append(self.nodes)
        self.nodes = []

    def leave_function(self, call: FunctionCall | None) -> None:
        inside, self.nodes = self.nodes, self._outside.pop()
        if call is not None:
            self.nodes.append(function_node(call, tuple(self._running) or ("",), tuple(inside)))


def trace(model: nn.Module, inputs: torch.Tensor | tuple[Any, ...]) -> tuple[Trace, capture.Trace]:
    """Run the model in the mode it is in; it raises what the model raises."""
    found = Trace()
    args = inputs if isinstance(inputs, tuple) else (inputs,)
    try:
        return found, observe(model, args, {}, found, whole=True)
    except TorchgaugeError as error:
        raise own_error(error) from None
