"""The peaks of a device: published, else measured on this machine."""

from __future__ import annotations

from torchgauge.hardware.calibration import remembered
from torchgauge.hardware.devices import Peaks, published_peaks

# Apple gives the processor and its GPU one name: the table holds the GPU's rates, a calibration the processor's.
_PROCESSOR, _APPLE_GPU = "cpu", "mps"


def peaks_of(name: str, kind: str = "cuda") -> Peaks | None:
    """By the name the driver gives; `kind` is torch's type of the device. None where nobody knows."""
    published = None if kind == _PROCESSOR else published_peaks(name)
    if published is not None or kind == _APPLE_GPU:
        return published
    return remembered(name)
