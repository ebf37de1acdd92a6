"""`torch.compile`, and CUDA graphs."""

from __future__ import annotations

import inspect
import os
from importlib.util import find_spec
from shutil import which
from typing import Any

import torch

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
    return Applied("model = torch.compile(model, options={'freezing': True})  # to be run under torch.no_grad()\n")


@transformation("pointwise-chain", stage="compile")
def compile_chains(trial: Trial) -> Applied:
    """The modules that hold the chains, each by itself, as the advice says."""
    require_compiler(trial.device)
    paths = [str(place["module"] or "") for place in trial.places]
    if "" in paths:
        return Applied(_WHOLE)
    known = [path for path in paths if trial.module(path) is not None]
    if not known:
        raise NotApplicableError("the model that runs has no modules of these names")
    modules = literal(list(dict.fromkeys(known)))
    return Applied(f"for path in {modules}:\n    model.get_submodule(path).compile()\n", places=len(known))


@transformation("launch-limit", stage="graph")
@transformation("launch-bound", stage="graph")
def cuda_graph(trial: Trial) -> Applied:
    if trial.device.type != "cuda":
        raise NotApplicableError("there are no CUDA graphs on this device")
    if trial.train:
        require_compiler(trial.device)
        return Applied("model = torch.compile(model, mode='reduce-overhead')\n")
    return Applied(
        "with torch.no_grad():\n"
        "    model = torch.cuda.make_graphed_callables(model, inputs)  # to be called with tensors alone\n",
        inputs=positional(trial),
    )


def positional(trial: Trial) -> Inputs:
    """A graph takes tensors, in order."""
    try:
        bound = inspect.signature(trial.model.forward).bind(*trial.args, **trial.kwargs)
    except (TypeError, ValueError) as error:
        raise NotApplicableError("a CUDA graph takes tensors in order, and those of this model have none") from error
    given: tuple[Any, ...] = bound.args
    if bound.kwargs or not given or not all(isinstance(value, torch.Tensor) for value in given):
        raise NotApplicableError("a CUDA graph takes tensors in order, and this model is called with more than that")
    return given, {}


def require_compiler(device: torch.device) -> None:
    """Checked first: the errors of a missing compiler are less clear."""
    if device.type == "cuda":
        if find_spec("triton") is None:
            raise NotApplicableError("torch.compile needs the package 'triton' here, which is not installed")
    elif not any(which(name) for name in (os.environ.get("CXX") or _COMPILERS[0], *_COMPILERS)):
        raise NotApplicableError("torch.compile needs a C++ compiler here, and there is none")
