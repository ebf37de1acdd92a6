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
