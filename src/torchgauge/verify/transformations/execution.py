"""How a model is run: `torch.compile`, CUDA graphs, threads, batches, activation checkpointing."""

from __future__ import annotations

import inspect
import os
import re
from importlib.util import find_spec
from shutil import which
from typing import Any

import psutil
import torch

from torchgauge.advise.code import Patch
from torchgauge.advise.rules.checkpointing import CHECKPOINT, CHECKPOINT_IMPORTS
from torchgauge.capture.structure import map_tensors
from torchgauge.errors import InputError
from torchgauge.measure.sweep import batch_size
from torchgauge.source import Candidate
from torchgauge.units import format_bytes
from torchgauge.verify.code import literal
from torchgauge.verify.registry import Applied, Inputs, NotApplicableError, Trial, transformation

_WHOLE = "model = torch.compile(model)\n"
_COMPILERS = ("g++", "clang++", "cl")


@transformation("dispatch-bound", stage="compile")
def compile_for_dispatch(trial: Trial) -> Applied:
    require_compiler(trial.device)
    return Applied(_WHOLE)


@transformation("linear-activation", stage="compile")
@transformation("conv-bn-activation", stage="compile")
def compile_frozen(trial: Trial) -> Applied:
    require_compiler(trial.device)
    if trial.row["rule"] == "linear-activation" and trial.device.type == "cuda":
        return Applied("model = torch.compile(model, mode='max-autotune')\n")
    return Applied("model = torch.compile(model, options={'freezing': True})  # run it under torch.no_grad()\n")


@transformation("pointwise-chain", stage="compile")
def compile_chains(trial: Trial) -> Applied:
    """Each module with a chain is compiled separately, as in the advice."""
    require_compiler(trial.device)
    paths = [str(place["module"] or "") for place in trial.places]
    if "" in paths:
        return Applied(_WHOLE)
    known = [path for path in paths if trial.module(path) is not None]
    if not known:
        raise NotApplicableError("the model that runs has no modules with these names")
    modules = literal(list(dict.fromkeys(known)))
    return Applied(f"for path in {modules}:\n    model.get_submodule(path).compile()\n", places=len(known))


@transformation("launch-limit", stage="graph")
@transformation("launch-bound", stage="graph")
def cuda_graph(trial: Trial) -> Applied:
    if trial.device.type != "cuda":
        raise NotApplicableError("CUDA graphs need a CUDA device")
    if trial.train:
        require_compiler(trial.device)
        return Applied("model = torch.compile(model, mode='reduce-overhead')\n")
    return Applied(
        "with torch.no_grad():\n"
        "    model = torch.cuda.make_graphed_callables(model, inputs)  # call it with tensors only\n",
        inputs=positional(trial),
    )


def positional(trial: Trial) -> Inputs:
    """The arguments of a call by position: a graph only takes tensors."""
    try:
        bound = inspect.signature(trial.model.forward).bind(*trial.args, **trial.kwargs)
    except (TypeError, ValueError) as error:
        raise NotApplicableError(
            "a CUDA graph takes positional tensors, and the inputs cannot be bound to forward"
        ) from error
    given: tuple[Any, ...] = bound.args
    if bound.kwargs or not given or not all(isinstance(value, torch.Tensor) for value in given):
        raise NotApplicableError("a CUDA graph takes positional tensors only, and this model takes other inputs")
    return given, {}


def require_compiler(device: torch.device) -> None:
    """Checked first, because torch's error for a missing compiler is less clear."""
    if device.type == "cuda":
        if find_spec("triton") is None:
            raise NotApplicableError("torch.compile needs the package 'triton' here, which is not installed")
    elif not any(which(name) for name in (os.environ.get("CXX") or _COMPILERS[0], *_COMPILERS)):
        raise NotApplicableError("torch.compile needs a C++ compiler here, and none was found")


_THREADS = re.compile(r"torch\.set_num_threads\(\d+\)")
# The share of the free memory that the activations of a larger batch may take.
_MAX_FREE_MEMORY_SHARE = 0.5


@transformation("idle-cores", stage="switches")
@transformation("thread-oversubscription", stage="switches")
@transformation("thread-count", stage="switches")
def set_threads(trial: Trial) -> Applied:
    advised = _THREADS.search(trial.row["code"] or "")
    if advised is None:
        raise NotApplicableError("the advice does not name a number of threads")
    return Applied(f"{advised[0]}\n")


@transformation("batch-at-knee")
def larger_batch(trial: Trial) -> Applied:
    """The same samples repeated; the gain is per sample. No code: the caller of the model makes the batches."""
    evidence = trial.evidence
    factor = evidence["knee_batch"] // max(evidence["batch"], 1)
    needed, is_cuda = evidence["peak_activation_bytes_there"], trial.device.type == "cuda"
    free = torch.cuda.mem_get_info(trial.device)[0] if is_cuda else psutil.virtual_memory().available
    if needed > _MAX_FREE_MEMORY_SHARE * free:
        raise NotApplicableError(
            f"this batch needs {format_bytes(needed)} of memory, but {format_bytes(free)} are free"
        )
    try:
        size = batch_size(Candidate(trial.args, dict(trial.kwargs), None))
    except InputError as error:
        raise NotApplicableError(str(error)) from error
    args, kwargs = map_tensors(
        (trial.args, dict(trial.kwargs)),
        lambda tensor: torch.cat([tensor] * factor) if tensor.dim() and tensor.shape[0] == size else tensor,
    )
    return Applied("", inputs=(args, kwargs), samples=factor, in_plan=False)


@transformation("activation-checkpointing")
def checkpointed(trial: Trial) -> Applied:
    """The forward of each block goes through `checkpoint`, which is the same as wrapping its call."""
    parent, kind = str(trial.row["where"]["module"] or ""), trial.evidence["type"]
    holder = trial.module(parent)
    names = [] if holder is None else [name for name, child in holder.named_children() if type(child).__name__ == kind]
    if not names:
        raise NotApplicableError("the model that runs has no blocks with this name")
    paths = [f"{parent}.{name}".lstrip(".") for name in names]
    code = Patch(CHECKPOINT, ("path",), tuple((path,) for path in paths), CHECKPOINT_IMPORTS)
    return Applied(code.text() + "\n", in_plan=False)
