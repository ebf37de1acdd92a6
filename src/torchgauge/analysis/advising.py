"""Advice, found when it is first asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchgauge.analysis.result import Advisor, Analysis

if TYPE_CHECKING:
    from torchgauge.advise import Machine


def advisor(silence: Sequence[str]) -> Advisor:
    """Names that no rule has are refused at once; the machine is looked at now, since its switches may change."""
    from torchgauge.advise import Evidence, advise, check_names

    check_names(silence)

    def find(found: Analysis) -> tuple[Mapping[str, Any], ...]:
        evidence = Evidence(found.capture, found, machine_of(found.capture.run.device))
        return tuple(advice.member() for advice in advise(evidence, silence))

    return find


def machine_of(device: str) -> Machine:
    """Torch's switches and the peaks of a CUDA device that is really there; tensors may only pretend to be on one."""
    from torchgauge.advise import Machine

    if not device.startswith("cuda"):
        return Machine()
    import torch

    from torchgauge.measure.target import device_peaks

    return Machine(
        peaks=device_peaks(torch.device(device)) if torch.cuda.is_available() else None,
        matmul_tf32=torch.backends.cuda.matmul.allow_tf32,
        convolution_tf32=torch.backends.cudnn.allow_tf32,
    )
