"""Tells a recorder when the modules of a twin start and end, without hooks and without touching a class.

Hooks would switch off torch's own fast paths (`nn.TransformerEncoderLayer` looks for them), and what is put into the
class is seen by every thread. There is the way of `nn.Module.compile()`: a module calls its `_compiled_call_impl`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from torchgauge.capture.higher_order import branches_followed
from torchgauge.capture.paths import ModulePaths
from torchgauge.capture.recorder import UNKNOWN_LINE, Recorder
from torchgauge.capture.source_lines import model_line

if TYPE_CHECKING:
    from torchgauge.capture.script.interpreter import Adopt


@contextmanager
def watch_modules(paths: ModulePaths, recorder: Recorder, adopt: Adopt) -> Iterator[None]:
    """`adopt` gives what stands for a tensor of the model in this run: script modules are asked for theirs."""
    interpreter: Any = None
    # Where its module is not loaded, nothing is one.
    exported_model = getattr(sys.modules.get("torchgauge.source.exported.model"), "ExportedModel", ())

    def exported(module: Any, *args: Any, **kwargs: Any) -> Any:
        before, module.engine.tell_line = recorder.source, recorder.note_line
        try:
            return module._call_impl(*args, **kwargs)
        finally:
            recorder.source, module.engine.tell_line = before, None

    def call(path: str, run: Any, *args: Any, **kwargs: Any) -> Any:
        previous = recorder.enter_path(path, args, kwargs)
        try:
            output = run(*args, **kwargs)
        except BaseException:
            recorder.fail(previous, args, kwargs)
            raise
        recorder.leave_path(previous, output)
        return output

    def call_layer(path: str, run: Any, *args: Any, **kwargs: Any) -> Any:
        """A layer of torch's own is one line of the model's code, whatever its ops: the stack is looked at once."""
        before = recorder.source
        if before is None:
            recorder.source = model_line() or UNKNOWN_LINE
        try:
            return call(path, run, *args, **kwargs)
        finally:
            recorder.source = before

    watched: list[dict[str, Any]] = []
    for module, path in paths.modules():
        run: Any = partial(exported, module) if isinstance(module, exported_model) else module._call_impl
        if isinstance(module, torch.jit.ScriptModule):
            from torchgauge.capture.script.interpreter import ScriptInterpreter, can_interpret

            if can_interpret(module):
                interpreter = interpreter or ScriptInterpreter(recorder, adopt)
                run = partial(interpreter.run, module)
        is_layer = type(module).__module__.startswith("torch.nn.") and not module._modules
        module.__dict__["_compiled_call_impl"] = partial(call_layer if is_layer else call, path, run)
        watched.append(module.__dict__)
    try:
        with branches_followed(recorder):
            yield
    finally:
        for attributes in watched:  # else the module would hold itself
            attributes.pop("_compiled_call_impl", None)
