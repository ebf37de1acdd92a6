"""The processor, the cores, the memory and the accelerators."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from torchgauge.isolation import is_isolated

# The first processor of the file names them all. The kernel writes the file as it is read, slowly on large machines.
_CPUINFO_BYTES = 4096


def usable_cores() -> int | None:
    """Logical cores this process may use: fewer than the machine has under an affinity mask."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


@cache
def platform_name() -> str:
    if sys.platform != "linux":
        return platform.platform()
    # As platform.platform() puts it, which starts a process (uname -p) for what it then leaves out.
    system = os.uname()
    return f"{system.sysname}-{system.release}-{system.machine}-with-{''.join(platform.libc_ver())}"


@cache
def total_memory() -> int:
    return int(psutil.virtual_memory().total)


@cache
def cpu_name() -> str:
    """The processor as its vendor calls it, or its architecture if the system does not name it."""
    name, cpuinfo = "", Path("/proc/cpuinfo")
    if sys.platform == "linux" and cpuinfo.exists():
        with cpuinfo.open("rb") as file:
            name = parse_cpuinfo(file.read(_CPUINFO_BYTES).decode(errors="replace"))
    elif sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        with suppress(OSError, subprocess.TimeoutExpired):
            answer = subprocess.run(command, capture_output=True, text=True, timeout=2, check=False)
            name = answer.stdout.strip()
    elif sys.platform == "win32":
        name = os.environ.get("PROCESSOR_IDENTIFIER", "")
    return name or platform.processor() or platform.machine() or "unknown"


def parse_cpuinfo(text: str) -> str:
    """The name in the text of /proc/cpuinfo; "" where there is none, as on most ARM machines."""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "cpu model", "Processor"):
            return " ".join(value.split())
    return ""


@dataclass(frozen=True, slots=True)
class Device:
    """An accelerator that torch can use."""

    name: str
    kind: str
    index: int
    memory_bytes: int | None = None
    compute_capability: str | None = None
    multiprocessors: int | None = None


def has_cuda(index: int | None) -> bool:
    """Whether this CUDA device is there; None for the current one."""
    import torch

    return torch.cuda.is_available() and (index or 0) < torch.cuda.device_count()


def device_name(kind: str, index: int | None = None) -> str:
    """The name under which a device's peaks are known: what its driver calls it."""
    if kind == "cuda":
        import torch

        return torch.cuda.get_device_name(index)
    return cpu_name()


def allows_tf32(kind: str) -> bool:
    """Whether CUDA may run float32 products ("matmul" or "convolution") in TF32."""
    import torch

    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    # If the newer switch was set, torch refuses to read the older one.
    newer = cuda if kind == "matmul" else getattr(cudnn, "conv", None)
    precision = getattr(newer, "fp32_precision", None)
    if precision is not None:
        return bool(precision == "tf32")
    return bool(cuda.allow_tf32 if kind == "matmul" else cudnn.allow_tf32)


def accelerator_name(device: str) -> str | None:
    """None if the device is absent. An isolated reader has no GPU: it asks its parent."""
    if is_isolated():
        from torchgauge.isolation import ask_parent

        return ask_parent("accelerator", device=device)["name"] if device.startswith("cuda") else None
    kind, _, index = device.partition(":")
    number = int(index) if index else None
    return device_name(kind, number) if kind == "cuda" and has_cuda(number) else None


def accelerators() -> tuple[Device, ...]:
    import torch

    found = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties: Any = torch.cuda.get_device_properties(index)
        found.append(
            Device(
                name=properties.name,
                kind="cuda",
                index=index,
                memory_bytes=properties.total_memory,
                compute_capability=f"{properties.major}.{properties.minor}",
                multiprocessors=properties.multi_processor_count,
            )
        )
    if torch.backends.mps.is_available():
        found.append(Device(name=cpu_name(), kind="mps", index=0, memory_bytes=torch.mps.recommended_max_memory()))
    return tuple(found)


def backends() -> dict[str, bool | str]:
    import torch

    # The BLAS torch was built with, from the `BLAS_INFO=` entry of its build settings.
    _, found, rest = torch.__config__.show().partition("BLAS_INFO=")
    blas_name = rest.split(",")[0].strip() if found else "unknown"
    cudnn = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    return {
        "blas": blas_name,
        "mkldnn": torch.backends.mkldnn.is_available(),
        "openmp": torch.backends.openmp.is_available(),
        "cuda": torch.version.cuda if torch.cuda.is_available() and torch.version.cuda else torch.cuda.is_available(),
        "cudnn": str(cudnn) if cudnn else False,
        "rocm": torch.version.hip or False,
        "mps": torch.backends.mps.is_available(),
    }
