"""What surrounds a run: a twin of the model in the mode asked for, compiled code switched off, no collections; for runs
on the model itself, everything is put back.
"""

from __future__ import annotations

import operator
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from torchgauge.capture.process_state import process_state_kept
from torchgauge.capture.sharded import gather_parameters
from torchgauge.capture.twin import Copier, in_mode
from torchgauge.errors import InputError, TorchgaugeError

# Frames of torch and ours, at most, for one module in another.
_FRAMES_OF_A_LEVEL = 6


@contextmanager
def prepared(model: nn.Module, *, train: bool, copier: Copier) -> Iterator[nn.Module]:
    """A twin of the model in the mode asked for, eager, outside inference mode; no setting is left changed."""
    with ExitStack() as stack:
        stack.enter_context(process_state_kept())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.set_grad_enabled(train))
        stack.enter_context(torch.jit.optimized_execution(False))  # type: ignore[attr-defined]
        stack.enter_context(_eager())
        stack.enter_context(_hub_offline())
        twin = copier.copy(model)
        gather_parameters(model, copier)
        stack.enter_context(in_mode(twin, train=train))
        yield twin


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Outside whatever the caller is inside of: modes that see every op, a trace, a compiled region. A transform of
    torch.func changes what tensors are, so there is no outside of it."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise InputError(
            "an analysis cannot run inside a transform of torch.func (vmap, grad, jvp, functionalize): call it outside"
        )
    with ExitStack() as stack:
        stack.enter_context(raised_recursion_limit(model))
        stack.enter_context(_disable_current_modes())
        engine: Any = torch._C
        if engine._get_tracing_state() is not None:
            stack.callback(engine._set_tracing_state, engine._get_tracing_state())
            engine._set_tracing_state(None)
        if "torch._dynamo" in sys.modules:
            frames = engine._dynamo.eval_frame
            stack.callback(frames.set_eval_frame, frames.set_eval_frame(None))
        yield


@contextmanager
def raised_recursion_limit(model: nn.Module) -> Iterator[None]:
    """Twice the recursion limit: an analysis adds frames between those of torch, and must not fail where the
    model alone would run. What is nested even deeper is reported as such."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(2 * limit)
    try:
        yield
    except (RecursionError, TorchgaugeError) as error:
        levels = nesting(model)
        if not _is_recursion(error) or _FRAMES_OF_A_LEVEL * levels < limit:
            raise
        raise InputError(
            f"the modules of the model are nested {levels} deep, and torch calls itself several times for each: that "
            f"is more than Python's recursion limit of {limit}; raise it before the analysis, for example with "
            f"sys.setrecursionlimit({limit + _FRAMES_OF_A_LEVEL * levels})"
        ) from error
    finally:
        sys.setrecursionlimit(limit)


def _is_recursion(error: BaseException | None) -> bool:
    """Whether a `RecursionError` is behind it: it may be raised anywhere, and be wrapped on its way."""
    while error is not None and not isinstance(error, RecursionError):
        error = error.__cause__ or error.__context__
    return error is not None


def nesting(model: nn.Module) -> int:
    """How many modules the longest path goes through, the model included; a module that holds itself ends it."""
    level, seen, depth = {model}, set[nn.Module](), 0
    while level and depth <= len(seen):
        seen |= level
        depth += 1
        level = {child for module in level for child in module._modules.values() if child is not None}
    return depth


@contextmanager
def _eager() -> Iterator[None]:
    """Compiled functions run as written. Only what is loaded can be compiled; loading it would cost a second."""
    flex = sys.modules.get("torch.nn.attention.flex_attention")
    compile_, owner = torch.compile, threading.get_ident()

    def uncompiled(model: Any = None, **options: Any) -> Any:
        """What compiles a function while the model runs (`torch.cond` does) gets the function."""
        if threading.get_ident() != owner:
            return compile_(model, **options)
        return uncompiled if model is None else model

    with ExitStack() as stack:
        stack.callback(setattr, torch, "compile", compile_)
        torch.compile = uncompiled
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        if flex is not None:
            name = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
            stack.callback(setattr, flex, name, getattr(flex, name, False))
            setattr(flex, name, True)
        yield


@contextmanager
def _hub_offline() -> Iterator[None]:
    """Nothing is downloaded by a run: a model may load weights or kernels in its forward."""
    constants: Any = sys.modules.get("huggingface_hub.constants")
    if constants is None:
        yield
        return
    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


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
                container.clear()
                if isinstance(container, list):
                    container.extend(content)
                elif isinstance(container, dict):
                    half = len(content) // 2
                    container.update(zip(content[:half], content[half:], strict=True))
                else:
                    container.update(content)
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
