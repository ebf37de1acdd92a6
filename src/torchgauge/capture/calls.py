"""Tells a recorder when modules start and end, for the thread that runs the analysis, without touching the modules.

The class-wide `nn.Module.__call__` is replaced for the length of the block: hooks on the modules would switch off
torch's own fast paths (`nn.TransformerEncoderLayer` looks for them) and would change the user's model.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from torchgauge.capture.higher_order import branches_followed
from torchgauge.capture.recorder import Recorder
from torchgauge.capture.script.interpreter import Adopt, ScriptInterpreter, can_interpret
from torchgauge.source.exported import ExportedModel


@contextmanager
def watch_modules(recorder: Recorder, adopt: Adopt) -> Iterator[None]:
    """`adopt` gives what stands for a tensor of the model in this run: script modules are asked for theirs."""
    interpreter = ScriptInterpreter(recorder, adopt)
    original = nn.Module.__call__
    owner = threading.get_ident()

    def exported(module: Any, *args: Any, **kwargs: Any) -> Any:
        before, module.engine.tell_line = recorder.source, recorder.note_line
        try:
            return original(module, *args, **kwargs)
        finally:
            recorder.source, module.engine.tell_line = before, None

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != owner:
            return original(module, *args, **kwargs)
        run = interpreter.run if can_interpret(module) else exported if isinstance(module, ExportedModel) else original
        previous = recorder.enter(module, args, kwargs)
        try:
            output = run(module, *args, **kwargs)
        except BaseException:
            recorder.fail(previous, args, kwargs)
            raise
        recorder.leave(module, previous, output)
        return output

    nn.Module.__call__ = call  # type: ignore[method-assign]
    try:
        with branches_followed(recorder):
            yield
    finally:
        nn.Module.__call__ = original  # type: ignore[method-assign]
