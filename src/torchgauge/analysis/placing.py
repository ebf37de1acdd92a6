"""The type and the device that were asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    if chosen.type == "cuda" and torch.version.cuda is None and torch.version.hip is None:
        raise InputError(
            f"this build of torch knows no '{device}' device, so tensors cannot pretend to be there; leave it out: "
            "parameters and MACs are the same on the CPU"
        )
    # Code that keeps something per device (cuDNN's RNNs) wants its number.
    return torch.device("cuda", 0) if chosen.type == "cuda" and chosen.index is None else chosen
