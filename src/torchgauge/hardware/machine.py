"""The processor, the cores, the memory and the accelerators; with the versions, one record of a run's environment.
torch is imported on use only."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from torchgauge.facts import Environment
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
    # Like platform.platform(), which starts a process (uname -p) for a part that it then leaves out.
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


# Packages that shape a result; a version is read only where the package is loaded, so this costs nothing.
_PACKAGES = ("numpy", "timm", "torchvision", "transformers")
# Settings of OpenMP and MKL.
# Variables of the environment that set threads, and how the C library keeps memory.
_VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "KMP_AFFINITY", "KMP_BLOCKTIME",
    "GOMP_CPU_AFFINITY", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_",
    "GLIBC_TUNABLES", "LD_PRELOAD",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class System:
    """The content of `torchgauge system`."""

    environment: Environment
    physical_cores: int | None
    logical_cores: int | None
    available_memory_bytes: int
    backends: dict[str, bool | str] = field(default_factory=dict)
    devices: tuple[Device, ...] = ()


def collect_environment(*, import_torch: bool = True, device: str = "cpu") -> Environment:
    """Without importing torch, its version is the installed one, and the threads are the usable cores. `device` is
    where the model runs, or is assumed to run."""
    settings: dict[str, object] = {name: os.environ[name] for name in _VARIABLES if os.environ.get(name)}
    if import_torch:
        import torch

        version, threads = str(torch.__version__), torch.get_num_threads()
        if is_isolated():
            from torchgauge.isolation import threads_of_caller

            threads = threads_of_caller() or threads
        settings["inter_op_threads"] = torch.get_num_interop_threads()
        # The vector instructions that torch's own kernels use: AVX2, AVX512, NEON, …
        settings["cpu_capability"] = torch.backends.cpu.get_cpu_capability()
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
