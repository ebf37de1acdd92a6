"""Rates measured on this machine, remembered between runs; the peaks of a device: published, else measured."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchgauge.cache import cache_folder, replace_file
from torchgauge.errors import TorchgaugeError
from torchgauge.hardware.devices import Peaks, published_peaks

FILE = "calibration.json"


def remembered(device: str) -> Peaks | None:
    """The rates measured on a device of this name; None where `torchgauge system --calibrate` has not been run."""
    row = _read().get(device)
    if not isinstance(row, Mapping):
        return None
    try:
        rates = {str(dtype): _rate(rate) for dtype, rate in dict(row["flops_per_s"]).items()}
        return Peaks(device, rates, _rate(row["bytes_per_s"]), None, f"measured {row['measured']}")
    except (KeyError, TypeError, ValueError):
        return None


def _rate(value: Any) -> float:
    rate = float(value)
    if not 0 < rate < math.inf:
        raise ValueError(f"no rate: {value}")
    return rate


def remember(device: str, flops_per_s: Mapping[str, float], bytes_per_s: float, measured: str) -> Path:
    """Keep the rates of a device; `measured` says when and with what. The file is written whole or not at all."""
    rates = {"flops_per_s": dict(flops_per_s), "bytes_per_s": bytes_per_s, "measured": measured}
    path = cache_folder() / FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(_read() | {device: rates}, indent=1).encode())
    except OSError as error:
        raise TorchgaugeError(f"the rates cannot be kept in '{path}': {error.strerror or error}") from error
    return path


def _read() -> dict[str, Any]:
    """What is there; a file that is missing or spoilt counts as empty, since it can be made again."""
    try:
        found = json.loads((cache_folder() / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


# Apple gives the processor and its GPU one name: the table holds the GPU's rates, a calibration the processor's.
_PROCESSOR, _APPLE_GPU = "cpu", "mps"


def peaks_of(name: str, kind: str = "cuda") -> Peaks | None:
    """By the name the driver gives; `kind` is torch's type of the device. None if unknown."""
    published = None if kind == _PROCESSOR else published_peaks(name)
    if published is not None or kind == _APPLE_GPU:
        return published
    return remembered(name)
