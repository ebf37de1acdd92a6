"""Arithmetic in narrower types, and the memory format that suits it."""

from __future__ import annotations

import torch
from torch import nn

from torchgauge.capture import missing_arithmetic
from torchgauge.verify.registry import BFLOAT16, TF32, Applied, NotApplicableError, Trial, transformation


@transformation("autocast-bf16", stage="precision", tolerance=BFLOAT16)
def autocast(trial: Trial) -> Applied:
    require_bfloat16(trial.device)
    return Applied(
        "full_precision = model.forward\n\n"
        "def autocast_forward(*args, **kwargs):\n"
        f"    with torch.autocast({trial.device.type!r}, dtype=torch.bfloat16):\n"
        "        return full_precision(*args, **kwargs)\n\n"
        "model.forward = autocast_forward\n"
    )


@transformation("bfloat16-weights", stage="precision", tolerance=BFLOAT16)
@transformation("memory-bound-layers", stage="precision", tolerance=BFLOAT16)
def all_bfloat16(trial: Trial) -> Applied:
    require_bfloat16(trial.device)
    return _with_inputs(
        "model = model.to(torch.bfloat16)",
        "cast = lambda x: x.to(torch.bfloat16) if torch.is_tensor(x) and x.is_floating_point() else x",
    )


@transformation("tf32-off", stage="switches", tolerance=TF32)
def tf32(trial: Trial) -> Applied:
    return Applied("torch.set_float32_matmul_precision('high')\n")


@transformation("weight-cast", stage="weights")
def cast_weights(trial: Trial) -> Applied:
    """Parameters are stored in the type that they are cast to at every call."""
    known = dict([*trial.model.named_parameters(), *trial.model.named_buffers()])
    found = [(str(place["weight"]), str(place["evidence"]["to"])) for place in trial.places if place["weight"] in known]
    if not found:
        raise NotApplicableError("the model that runs has no parameters with these names")
    lines = []
    for name, kind in dict(found).items():
        getter = "get_parameter" if isinstance(known[name], nn.Parameter) else "get_buffer"
        lines.append(f"weight = model.{getter}({name!r})\nweight.data = weight.data.to(torch.{kind})\n")
    return Applied("".join(lines), places=len(found))


@transformation("channels-last", stage="layout")
@transformation("image-layout", stage="layout")
def channels_last(trial: Trial) -> Applied:
    return _with_inputs(
        "model = model.to(memory_format=torch.channels_last)",
        "is_image = lambda x: torch.is_tensor(x) and x.dim() == 4\n"
        "cast = lambda x: x.to(memory_format=torch.channels_last) if is_image(x) else x",
    )


def _with_inputs(change: str, cast: str) -> Applied:
    """Change the model, and apply `cast` to its inputs at every call. Not with a hook, which a CUDA graph forbids."""
    return Applied(
        f"{change}\n{cast}\nunchanged_forward = model.forward\n\n"
        "def forward_with_cast_inputs(*args, **kwargs):\n"
        "    return unchanged_forward(*map(cast, args), **{name: cast(x) for name, x in kwargs.items()})\n\n"
        "model.forward = forward_with_cast_inputs\n"
    )


def require_bfloat16(device: torch.device) -> None:
    missing = missing_arithmetic(torch.bfloat16, device)
    if missing is not None:
        raise NotApplicableError(missing)
