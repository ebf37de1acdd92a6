"""Figures of repeated runs, and the machine they ran on."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from statistics import fmean, median, stdev
from typing import Any

import torch

from torchgauge.hardware import total_memory

FIGURES: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": fmean,
    "max": max,
    "min": min,
    "std": stdev,
    "median": median,
}


def summarise(times_ms: Sequence[float], order: Sequence[str]) -> dict[str, float | None]:
    """None of what was never timed; the spread of a single run is not a number."""
    return {f"inference_time_{name}_ms": _figure(name, times_ms) for name in order}


def _figure(name: str, times_ms: Sequence[float]) -> float | None:
    if not times_ms:
        return None
    if name == "std" and len(times_ms) == 1:
        return float("nan")
    return float(FIGURES[name](times_ms))


def machine() -> dict[str, Any]:
    return {
        "intraop_threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "host_name": platform.node(),
        "os": platform.system(),
        "os_release": platform.release(),
        "cpu_count": os.cpu_count(),
        "total_memory": f"{total_memory() // 2**20} MB",
        "gpu": _gpu_names(),
    }


def _gpu_names() -> str | list[str]:
    if not torch.cuda.is_available():
        return "unavailable"
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
