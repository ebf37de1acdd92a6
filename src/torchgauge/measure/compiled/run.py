"""The graphs and kernels of a model under `torch.compile`: run once on fake tensors, or for real if it reads values."""

from __future__ import annotations

import contextvars
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from torchgauge.capture import Request, undisturbed
from torchgauge.capture.copier import Copier, in_mode
from torchgauge.capture.failures import clear_traceback
from torchgauge.capture.restored_state import initialised_copy, is_lazy, process_state_kept
from torchgauge.capture.run import one_at_a_time
from torchgauge.capture.structure import is_subclass
from torchgauge.capture.training import gradient_roots
from torchgauge.errors import ForwardError, InputError, first_line
from torchgauge.facts.compiled import Compiled
from torchgauge.interpreter import safe_path_of_children
from torchgauge.measure.compiled.inductor import (
    TUNING,
    UNTUNED,
    Options,
    Recording,
    compile_parts,
    recording,
    require_compiler,
)
from torchgauge.measure.subject import ready
from torchgauge.source import Candidate, Source
from torchgauge.source.exported import ExportedModel

# A model that looks at its values is run with real ones up to this size.
_REAL_LIMIT_BYTES = 4 << 30
_INDUCTOR = "inductor"


@safe_path_of_children()
def compile_model(model: nn.Module, candidate: Candidate, request: Request, root: Options | None = None) -> Compiled:
    """Compile the model with these inputs and record the result; the generated code does not run. `root` are the
    options of a model that is compiled already."""
    require_compiler(request.device)
    with one_at_a_time, undisturbed(model), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = contextvars.copy_context().run
        try:
            return run(_on_fakes, model, candidate, request, root)
        except Exception as error:  # the model's own code may raise anything on a tensor without values
            failure = f"{type(error).__name__}: {first_line(error)}"
            clear_traceback(error)
        nbytes = sum(parameter.nbytes for parameter in model.parameters())
        if nbytes > _REAL_LIMIT_BYTES:
            raise ForwardError(f"the model cannot be compiled on tensors without values: {failure}")
        try:
            return run(_for_real, model, candidate, request, root, failure)
        except Exception as error:
            raise ForwardError(f"compiling the model failed: {first_line(error)}") from error


def require_code(source: Source) -> None:
    if isinstance(source.model, torch.jit.ScriptModule | ExportedModel):
        kind = "TorchScript" if isinstance(source.model, torch.jit.ScriptModule) else "an exported program"
        raise InputError(
            f"'{source.record.name}' is {kind}, and torch.compile takes Python code: give the code that it was made "
            "from (file.py:Name), or analyse it with --execution eager"
        )


def _on_fakes(model: nn.Module, candidate: Candidate, request: Request, root: Options | None) -> Compiled:
    if is_lazy(model):
        model = initialised_copy(model, candidate.args, candidate.kwargs)
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        """A tensor without values for one of the model or an input, of the device and type asked for."""
        if is_subclass(tensor) or tensor.layout is not torch.strided:
            return mode.from_tensor(tensor)
        dtype = request.dtype if tensor.is_floating_point() and request.dtype else tensor.dtype
        with mode, torch.no_grad():
            like = torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device=request.device)
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(like, tensor.requires_grad)
        return like.requires_grad_(tensor.requires_grad)

    with ExitStack() as stack:
        stack.enter_context(process_state_kept())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.set_grad_enabled(request.train))
        replica = Copier(fake).copy(model)
        args, kwargs = Copier(fake).copy((candidate.args, candidate.kwargs))
        stack.enter_context(in_mode(replica, train=request.train))
        found = stack.enter_context(recording(replica, runs_code=False))
        runnable, used = compile_parts(replica, root, runs_code=False)
        with mode:
            _run(runnable, args, kwargs, train=request.train)
        return finished(found, used, request, is_run=False)


def _for_real(model: nn.Module, candidate: Candidate, request: Request, root: Options | None, failure: str) -> Compiled:
    prepared = ready(
        model, candidate, device=request.device, dtype=request.dtype, train=request.train, build_real=request.build_real
    )
    with ExitStack() as stack:
        subject = stack.enter_context(prepared)
        found = stack.enter_context(recording(subject.model, runs_code=False))
        runnable, used = compile_parts(subject.model, root, runs_code=False)
        _run(runnable, subject.args, subject.kwargs, train=request.train)
        found.notes.append(
            f"tensors without values were not enough, so the model was run for real, op by op ({failure})"
        )
        return finished(found, used, request, is_run=False)


def _run(model: Any, args: tuple[Any, ...], kwargs: dict[str, object], *, train: bool) -> None:
    output = model(*args, **kwargs)
    if train:
        roots = gradient_roots(output)
        if not roots:
            raise InputError(
                "nothing to train: no floating-point output depends on a parameter that requires a gradient"
            )
        with torch.autograd.set_multithreading_enabled(False):  # what other threads compile would not be seen
            torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])


def finished(found: Recording, used: Sequence[Options], request: Request, *, is_run: bool) -> Compiled:
    """The facts of a recording, with notes about them."""
    notes, breaks = list(found.notes), found.breaks
    others = sorted({options.name for options in used if options.name != _INDUCTOR})
    if others:
        notes.append(f"no kernels are known of the backend {', '.join(others)}: only Inductor's are")
    if breaks:
        notes.append("code between the graphs runs eagerly and is not among the kernels")
    if breaks and any(options.fullgraph for options in used):
        notes.append("it was compiled with fullgraph=True, which raises at the first of these breaks")
    if not is_run and any(options.changes.get(name) for options in used for name in TUNING):
        notes.append(UNTUNED)
    if request.train:
        notes.append("the optimizer step is not compiled")
    if not is_run and request.device.type == "cpu":
        notes.append(
            "kernels are the fusion decisions of Inductor's scheduler for the CPU; on a GPU it fuses more, "
            "and --device cuda has those of a GPU"
        )
    changes = {name: value for options in used for name, value in options.changes.items()}
    names = ", ".join(sorted({options.name for options in used}))
    return Compiled(
        names, request.device.type, is_run, found.called_graphs, breaks, found.kernels, tuple(found.recompilations),
        changes, tuple(notes),
    )  # fmt: skip
