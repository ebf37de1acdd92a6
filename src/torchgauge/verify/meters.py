"""Bytes of a model and of its runs."""

from __future__ import annotations

import torch
from torch import nn

from torchgauge.capture.structure import storage_key
from torchgauge.measure.memory import allocation_peak
from torchgauge.measure.module_times import module_paths
from torchgauge.measure.profile import profile_runs
from torchgauge.verify.sides import Side
from torchgauge.verify.switches import switches_kept

_PARTS = ("packed", "meta", "packed_t", "meta_t")


def held_bytes(model: nn.Module) -> int:
    """Of all parameters and buffers, what is shared once."""
    held: dict[int, int] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        # A semi-structured tensor has parts instead of a storage.
        names = () if type(tensor) in (torch.Tensor, nn.Parameter) else _PARTS
        parts = [part for name in names if isinstance(part := getattr(tensor, name, None), torch.Tensor)]
        held |= {storage_key(part): part.nbytes for part in parts or [tensor]}
    return sum(held.values())


def peak_bytes(side: Side) -> int:
    """The most that torch's allocator held beyond what it held before a run."""
    subject = side.subject
    with switches_kept():
        side.switches.apply()
        side.run()
        # The first run of a profiler sets it up.
        runs = profile_runs(side.run, module_paths(subject.model), 2, device=subject.device, memory=True)
    return allocation_peak(runs[-1], on_device=subject.device.type == "cuda")
