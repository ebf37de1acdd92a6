"""What was asked for: the target itself, the type, the device."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from torchgauge.errors import InputError

if TYPE_CHECKING:
    import torch


def chosen_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    from torchgauge.source import parse_dtype

    return parse_dtype(dtype) if isinstance(dtype, str) else dtype


def chosen_device(device: torch.device | str | None) -> torch.device:
    import torch

    try:
        chosen = torch.device(device or "cpu")
    except RuntimeError as error:
        raise InputError(f"no device '{device}': {str(error).splitlines()[0]}") from error
    # Code that keeps something per device (cuDNN's RNNs) wants its number.
    return torch.device("cuda", 0) if chosen.type == "cuda" and chosen.index is None else chosen


def pretended_device(device: torch.device, *, is_run: bool) -> tuple[torch.device, tuple[str, ...]]:
    """Where the tensors of the static pass pretend to be, and what is to be said of it. A build of torch that does not
    know the device cannot pretend: where runs were asked for too, the static figures are still worth having."""
    import torch

    if device.type != "cuda" or torch.version.cuda is not None or torch.version.hip is not None:
        return device, ()
    unknown = f"this build of torch knows no '{device}' device, so tensors cannot pretend to be there"
    if not is_run:
        raise InputError(f"{unknown}; leave it out: parameters and MACs are the same on the CPU")
    return torch.device("cpu"), (f"{unknown}: the static figures are those of the CPU",)


def unwrapped(target: Any) -> Any:
    """A path as text, a module without what torch.compile and data parallelism put around it."""
    from torch.nn import Module

    from torchgauge.capture import unwrap

    subject = os.fspath(target) if isinstance(target, os.PathLike) else target
    return unwrap(subject) if isinstance(subject, Module) else subject


def stored_path(target: Any) -> str | None:
    """The file or folder that a target names; None for a live model and for Python code."""
    if not isinstance(target, str | os.PathLike):
        return None
    path = os.fspath(target).strip().removeprefix("hf:")
    return path if os.path.exists(path) and not path.endswith(".py") else None
