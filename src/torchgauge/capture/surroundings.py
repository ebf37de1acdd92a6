"""What surrounds a run: the model in the mode asked for, compiled code switched off, the garbage collector quiet."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from torchgauge.capture.untouched import untouched
from torchgauge.errors import ForwardError, InputError

# Frames of torch and ours, at most, for one module in another.
_FRAMES_OF_A_LEVEL = 6


@contextmanager
def prepared(model: nn.Module, *, train: bool) -> Iterator[None]:
    """The model in the mode asked for, eager, outside inference mode; everything back as it was at the end."""
    with ExitStack() as stack:
        stack.enter_context(untouched(model))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.set_grad_enabled(train))
        stack.enter_context(torch.jit.optimized_execution(False))  # type: ignore[attr-defined]
        stack.enter_context(_eager())
        model.train(train)
        yield


@contextmanager
def no_collections() -> Iterator[None]:
    """Keep the garbage collector from walking the whole process (0.2 s with transformers loaded) amid many small
    allocations. What dies by its last reference dies as ever, so live memory is exact, and the same every time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def deep_calls(model: nn.Module) -> Iterator[None]:
    """Twice the recursion limit: an analysis has frames of its own between those of torch, and must not fail where the
    model alone would run. What is nested deeper still is told as that."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(2 * limit)
    try:
        yield
    except (RecursionError, ForwardError) as error:
        levels = nesting(model)
        if not isinstance(error.__cause__ or error, RecursionError) or _FRAMES_OF_A_LEVEL * levels < limit:
            raise
        raise InputError(
            f"the modules of the model are nested {levels} deep, and torch calls itself several times for each: that "
            f"is more than Python's recursion limit of {limit}; raise it before the analysis, for example with "
            f"sys.setrecursionlimit({limit + _FRAMES_OF_A_LEVEL * levels})"
        ) from error
    finally:
        sys.setrecursionlimit(limit)


def nesting(model: nn.Module) -> int:
    """How many modules the longest path goes through, the model included; a module that holds itself ends it."""
    level, seen, depth = {model}, set[nn.Module](), 0
    while level and depth <= len(seen):
        seen |= level
        depth += 1
        level = {child for module in level for child in module._modules.values() if child is not None}
    return depth


def _uncompiled(model: Any = None, **_: Any) -> Any:
    return _uncompiled if model is None else model


@contextmanager
def _eager() -> Iterator[None]:
    """Compiled functions run as written. Only what is loaded can be compiled; loading it would cost a second."""
    flex = sys.modules.get("torch.nn.attention.flex_attention")
    with ExitStack() as stack:
        # What compiles a function while the model runs (`torch.cond` does) gets the function.
        stack.callback(setattr, torch, "compile", torch.compile)
        torch.compile = _uncompiled
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        if flex is not None:
            name = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
            stack.callback(setattr, flex, name, getattr(flex, name, False))
            setattr(flex, name, True)
        yield
