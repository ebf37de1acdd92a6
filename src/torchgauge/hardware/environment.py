"""The machine and the versions in one record. torch is imported on use only."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import psutil

from torchgauge.facts import Environment
from torchgauge.hardware.machine import (
    Device,
    accelerator_name,
    accelerators,
    allows_tf32,
    backends,
    cpu_name,
    platform_name,
    total_memory,
    usable_cores,
)
from torchgauge.isolation import is_isolated

# Packages that shape a result; a version is read only where the package is loaded, so this costs nothing.
_PACKAGES = ("numpy", "timm", "torchvision", "transformers")
# Settings of OpenMP and MKL.
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "KMP_AFFINITY", "KMP_BLOCKTIME",
    "GOMP_CPU_AFFINITY",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class System:
    """What `torchgauge system` shows."""

    environment: Environment
    physical_cores: int | None
    logical_cores: int | None
    available_memory_bytes: int
    backends: dict[str, bool | str] = field(default_factory=dict)
    devices: tuple[Device, ...] = ()


def collect_environment(*, import_torch: bool = True, device: str = "cpu") -> Environment:
    """Reading files needs no torch: then its version is what is installed, and the threads are ours. `device` is where
    the model is, which tensors may only pretend."""
    settings: dict[str, Any] = {name: os.environ[name] for name in _THREAD_VARIABLES if os.environ.get(name)}
    if import_torch:
        import torch

        version, threads = str(torch.__version__), torch.get_num_threads()
        if is_isolated():
            from torchgauge.isolation import threads_of_caller

            threads = threads_of_caller() or threads
        settings["inter_op_threads"] = torch.get_num_interop_threads()
        if device.startswith("cuda"):
            settings |= {"matmul_tf32": allows_tf32("matmul"), "convolution_tf32": allows_tf32("convolution")}
    else:
        threads = usable_cores() or 1
        try:
            version = metadata.version("torch")
        except metadata.PackageNotFoundError:
            version = "not installed"
    loaded = {name: sys.modules[name] for name in _PACKAGES if name in sys.modules}
    loaded_packages = {name: str(getattr(module, "__version__", "unknown")) for name, module in loaded.items()}
    return Environment(
        python=platform.python_version(),
        torch=version,
        platform=platform_name(),
        cpu=cpu_name(),
        cpu_cores=usable_cores(),
        memory_bytes=total_memory(),
        threads=threads,
        packages=loaded_packages,
        device=accelerator_name(device),
        settings=settings,
    )


def collect_system() -> System:
    return System(
        environment=collect_environment(),
        physical_cores=psutil.cpu_count(logical=False),
        logical_cores=psutil.cpu_count(),
        available_memory_bytes=psutil.virtual_memory().available,
        backends=backends(),
        devices=accelerators(),
    )
