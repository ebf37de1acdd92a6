"""Steps that are more than a function of their inputs: branches, loops, attributes, calls, exceptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from torchgauge.capture.script.program import Block, Done, Instance, Unsupported
from torchgauge.capture.signals import Endless

if TYPE_CHECKING:
    from torchgauge.capture.script.interpreter import Frame

Run = Callable[..., Any]

# A graph may loop for ever; no model of use repeats its loops so often, all of them together.
LOOP_LIMIT = 1 << 18
_GRAD_MODES = {
    "__torch__.torch.autograd.grad_mode.no_grad": False,
    "__torch__.torch.autograd.grad_mode.inference_mode": False,
    "__torch__.torch.autograd.grad_mode.enable_grad": True,
}
_INERT = ("__torch__.torch.autograd.profiler.record_function",)


def choose(yes: Block, no: Block) -> Run:
    def run(frame: Frame, condition: Any) -> Any:
        return _one_or_all(frame.run(yes if condition else no, ()))

    return run


def loop(body: Block) -> Run:
    def run(frame: Frame, limit: int, condition: Any, *carried: Any) -> Any:
        values: tuple[Any, ...] = carried
        count = 0
        while condition and count < limit:
            condition, *rest = frame.run(body, (count, *values))
            values = tuple(rest)
            count += 1
            frame.interpreter.iterations += 1
            if frame.interpreter.iterations > LOOP_LIMIT:
                raise Endless(f"the loops of the graph ran {LOOP_LIMIT} times and did not end")
        return _one_or_all(values)

    return run


def _one_or_all(values: Any) -> Any:
    return values[0] if len(values) == 1 else values


def fork(body: Block) -> Run:
    def run(frame: Frame, *args: Any) -> Done:
        return Done(_one_or_all(frame.apart().run(body, args)))

    return run


def held(tensor: torch.Tensor) -> Run:
    return lambda frame: frame.interpreter.adopt(tensor)


def get_attribute(name: str) -> Run:
    return lambda frame, owner: frame.interpreter.attribute(owner, name)


def set_attribute(name: str) -> Run:
    return lambda frame, owner, value: frame.interpreter.set_attribute(owner, name, value)


def call_method(name: str) -> Run:
    return lambda frame, owner, *args: frame.interpreter.call_method(owner, name, args)


def raise_exception(message: str, kind: str | None = None) -> None:
    raise RuntimeError(message)


def creator(kind: str) -> Run:
    return lambda: Instance(kind)


def enterer(kind: str) -> Run:
    if kind in _INERT:
        return lambda manager: None
    if kind not in _GRAD_MODES:
        raise Unsupported(f"with {kind}")

    def enter(manager: Instance) -> None:
        manager.attributes["before"] = torch.is_grad_enabled()
        torch.set_grad_enabled(_GRAD_MODES[kind])

    return enter


def leave(manager: Instance) -> None:
    if "before" in manager.attributes:
        torch.set_grad_enabled(manager.attributes["before"])
