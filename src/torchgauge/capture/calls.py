"""Module calls: a recorder is notified when modules start and end; real runs are intercepted class-wide.

`watch_modules` works on the copy of a model that an analysis runs, without hooks and without changing a class. Hooks
would switch off torch's own fast paths (`nn.TransformerEncoderLayer` looks for them), and every thread sees a changed
class. It uses the mechanism of `nn.Module.compile()` instead: a module calls its `_compiled_call_impl`.
`intercept_calls` is for runs of the user's own modules, and for modules that are made while the model runs.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._higher_order_ops.associative_scan import AssociativeScanOp, generic_associative_scan
from torch._higher_order_ops.cond import CondOp
from torch._higher_order_ops.map import MapImpl
from torch._higher_order_ops.scan import ScanOp
from torch._higher_order_ops.while_loop import WhileLoopOp
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from torchgauge.capture.fake_tensor import DataDependent, Endless
from torchgauge.capture.paths import ModulePaths
from torchgauge.capture.recorder import UNKNOWN_LINE, Recorder, model_line
from torchgauge.facts import Cost
from torchgauge.source.process_state import replaced_here

if TYPE_CHECKING:
    from torchgauge.capture.script.interpreter import Adopt, ScriptInterpreter
    from torchgauge.source.exported.model import ExportedModel


# The forward of a module, a branch or the body of a loop: it is called, and its result passed on.
Function = Callable[..., Any]


@contextmanager
def intercept_calls(intercept: Function) -> Iterator[None]:
    """Hand every module call of this thread to `intercept(call, module, *args, **kwargs)`, which calls
    `call(module, *args, **kwargs)`, torch's own."""
    original, owner = nn.Module.__call__, threading.get_ident()

    def call(module: nn.Module, /, *args: object, **kwargs: object) -> object:
        if threading.get_ident() != owner:
            return original(module, *args, **kwargs)
        return intercept(original, module, *args, **kwargs)

    nn.Module.__call__ = call  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__call__ = original  # type: ignore[method-assign]


@contextmanager
def watch_modules(paths: ModulePaths, recorder: Recorder, adopt: Adopt) -> Iterator[None]:
    """`adopt` returns the run's tensor for a tensor of the model; script modules need it."""
    interpreter: ScriptInterpreter | None = None
    # If its module is not loaded, no model is one.
    exported_model = getattr(sys.modules.get("torchgauge.source.exported.model"), "ExportedModel", ())

    def exported(module: ExportedModel, *args: object, **kwargs: object) -> object:
        before, module.engine.on_line = recorder.source, recorder.note_line
        try:
            return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
        finally:
            recorder.source, module.engine.on_line = before, None

    def call(path: str, run: Function, *args: object, **kwargs: object) -> object:
        previous = recorder.enter_path(path, args, kwargs)
        try:
            output = run(*args, **kwargs)
        except BaseException:
            recorder.fail(previous, args, kwargs)
            raise
        recorder.leave_path(previous, output)
        return output

    def call_layer(path: str, run: Function, *args: object, **kwargs: object) -> object:
        """All ops of a torch layer belong to one line of the model's code, so the stack is read once."""
        before = recorder.source
        if before is None:
            recorder.source = model_line(recorder.packages) or UNKNOWN_LINE
        try:
            return call(path, run, *args, **kwargs)
        finally:
            recorder.source = before

    watched: list[dict[str, object]] = []
    for module, path in paths.modules():
        run: Function = partial(exported, module) if isinstance(module, exported_model) else module._call_impl
        # A script module with overloads only, like a bare LSTM, cannot be called at all.
        if isinstance(module, torch.jit.ScriptModule) and module._c._has_method("forward"):
            from torchgauge.capture.script import interpreter as script

            interpreter = interpreter or script.ScriptInterpreter(recorder, adopt)
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


# Branches, loops and scans that a model writes as ops (`torch.cond`, `while_loop`, `scan`, `associative_scan`): run as
# Python would, in place. Torch's own way compiles them, which cannot be done with fake tensors, and hides their
# modules.

# The same limit as for loops of TorchScript: no real model repeats one so often.
LOOP_LIMIT = 1 << 18


@contextmanager
def branches_followed(recorder: Recorder) -> Iterator[None]:
    """`torch.cond`, `while_loop`, `scan`, `map` and `associative_scan` run their functions directly, in this thread,
    for the block."""
    turns = count()  # of all loops together: they may be nested

    def cond(
        _: object, op: object, condition: object, yes: Function, no: Function, operands: Sequence[object] = ()
    ) -> object:
        recorder.budget.spend_steps()  # where branches are nested, each is costed again for every enclosing one
        try:
            is_true = bool(condition)
        except DataDependent:
            is_true = _price(recorder, yes, operands) >= _price(recorder, no, operands)
            where = f" in '{recorder.path}'" if recorder.path else ""
            recorder.warn(
                f"the branch that torch.cond{where} takes depends on data: the more expensive one was assumed, the one "
                f"for {'true' if is_true else 'false'}"
            )
        return (yes if is_true else no)(*operands)

    def while_loop(
        _: object, op: object, condition: Function, body: Function, carried: Sequence[object], fixed: Sequence[object]
    ) -> object:
        values = tuple(carried)
        result: object = values
        while bool(condition(*values, *fixed)):
            result = body(*values, *fixed)
            values = tuple(tree_leaves(result))
            recorder.budget.spend_steps()
            if next(turns) > LOOP_LIMIT:
                raise Endless(f"torch.while_loop ran {LOOP_LIMIT} times and did not end")
        return result

    with ExitStack() as stack:
        followed: dict[type, Function] = {
            CondOp: cond, WhileLoopOp: while_loop, ScanOp: _scan, MapImpl: _map, AssociativeScanOp: _associative_scan
        }  # fmt: skip
        for kind, replacement in followed.items():
            stack.enter_context(replaced_here(kind, "__call__", replacement))
        yield


def _scan(
    _: object, op: object, combine: Function, init: Sequence[object], xs: Sequence[Tensor],
    additional_inputs: Sequence[object] = (),
) -> object:  # fmt: skip
    carry, outputs, structure = list(init), list[list[Tensor]](), None
    for step in range(xs[0].shape[0] if xs else 0):
        results, structure = tree_flatten(combine(*carry, *(x[step] for x in xs), *additional_inputs))
        carry = results[: len(carry)]
        outputs.append(results[len(carry) :])
    leaves = [*carry, *(torch.stack(each) for each in zip(*outputs, strict=True))]
    return tuple(leaves) if structure is None else tree_unflatten(leaves, structure)


def _map(_: object, op: object, function: Function, xs: Sequence[Tensor], fixed: Sequence[object] = ()) -> object:
    flat = [tree_flatten(function(*(x[step] for x in xs), *fixed)) for step in range(xs[0].shape[0])]
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    return tree_unflatten([torch.stack(each) for each in columns], flat[0][1])


def _associative_scan(_: object, op: object, combine: Function, xs: Sequence[Tensor], *rest: object) -> object:
    """By halves, as torch's eager form does: pairs, the scan of the pairs, then the elements between."""
    dim = next((value for value in rest if isinstance(value, int)), 0)  # torch 2.6 has one
    fixed = next((value for value in rest if isinstance(value, tuple | list)), ())
    return generic_associative_scan(lambda *pair: combine(*pair, *fixed), list(xs), dim)


def _price(recorder: Recorder, branch: Function, operands: Sequence[object]) -> tuple[int, int, int]:
    """The cost of a branch; the recorder forgets that it ran."""
    with recorder.rehearsal() as ops:
        branch(*operands)
        total = sum((op.cost for op in ops()), Cost())
    return total.macs, total.flops, total.bytes_moved
