"""GPUs by short names: their memory, and the properties that determine the kernels.

Capacities are those of NVIDIA's aiconfigurator (Apache-2.0, commit 095f58a5) where it lists the device, else of the
data sheets; `total_bytes` is what CUDA reports as total where that was measured. Otherwise a margin is subtracted from
the nominal figure: drivers reserve 1 to 2 % of HBM and of consumer cards, and about 8 % of GDDR6 with ECC.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from torchgauge.errors import InputError, UsageError
from torchgauge.predict.workspaces import Chip

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Device:
    """`is_measured` says that predictions for this kind of chip were compared with a real one."""

    name: str
    title: str
    nominal_bytes: int
    chip: Chip
    margin: float = 0.02
    total_bytes: int | None = None
    note: str = ""

    @property
    def capacity_bytes(self) -> int:
        return self.total_bytes if self.total_bytes is not None else int(self.nominal_bytes * (1 - self.margin))

    @property
    def capacity_source(self) -> str:
        if self.note:
            return self.note
        if self.total_bytes is not None:
            return "total that CUDA reports, measured"
        return f"nominal {self.nominal_bytes / GIB:.0f} GiB less {self.margin * 100:.0f} % that the driver reserves"

    @property
    def is_measured(self) -> bool:
        return self.chip.capability == (9, 0)


def _chip(multiprocessors: int, major: int, minor: int) -> Chip:
    threads = {(7, 5): 1024, (8, 6): 1536, (8, 9): 1536, (12, 0): 1536}.get((major, minor), 2048)
    return Chip(multiprocessors, (major, minor), threads)


_DEVICES = (
    Device("h200", "NVIDIA H200", 151397597184, _chip(132, 9, 0), total_bytes=150109880320),
    Device("h100", "NVIDIA H100 80GB", 85899345920, _chip(132, 9, 0)),
    Device("h100_pcie", "NVIDIA H100 PCIe", 85899345920, _chip(114, 9, 0)),
    Device("a100", "NVIDIA A100 80GB", 85899345920, _chip(108, 8, 0)),
    Device("a100_40gb", "NVIDIA A100 40GB", 40 * GIB, _chip(108, 8, 0)),
    Device("a30", "NVIDIA A30", 25769803776, _chip(56, 8, 0)),
    Device("a10", "NVIDIA A10", 24 * GIB, _chip(72, 8, 6), margin=0.08),
    Device("a6000", "NVIDIA RTX A6000", 48 * GIB, _chip(84, 8, 6)),
    Device("b200", "NVIDIA B200", 193273528320, _chip(148, 10, 0)),
    Device("b300", "NVIDIA B300", 288400343040, _chip(148, 10, 3)),
    Device("gb200", "NVIDIA GB200", 198674743296, _chip(148, 10, 0)),
    Device("gb300", "NVIDIA GB300", 298013687808, _chip(148, 10, 3)),
    Device("l4", "NVIDIA L4", 25769803776, _chip(58, 8, 9), margin=0.08),
    Device("l40s", "NVIDIA L40S", 48305799168, _chip(142, 8, 9), margin=0.01),
    Device("t4", "Tesla T4", 16 * GIB, _chip(40, 7, 5), margin=0.08),
    Device("v100", "Tesla V100 32GB", 32 * GIB, _chip(80, 7, 0)),
    Device("v100_16gb", "Tesla V100 16GB", 16 * GIB, _chip(80, 7, 0)),
    Device("rtx3090", "NVIDIA GeForce RTX 3090", 24 * GIB, _chip(82, 8, 6)),
    Device("rtx4090", "NVIDIA GeForce RTX 4090", 24 * GIB, _chip(128, 8, 9)),
    Device("rtx5090", "NVIDIA GeForce RTX 5090", 32 * GIB, _chip(170, 12, 0)),
    Device("rtx_pro_6000", "NVIDIA RTX PRO 6000", 102641958912, _chip(188, 12, 0)),
)
_BY_NAME = {device.name: device for device in _DEVICES} | {d.name.replace("_", ""): d for d in _DEVICES}
_OTHER_NAMES = {"h200_sxm": "h200", "h100_sxm": "h100", "a100_sxm": "a100", "a100_80gb": "a100", "b200_sxm": "b200"}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(gib|gb|mib|mb|g|m)b?", re.IGNORECASE)
_UNITS = {"gib": 1 << 30, "mib": 1 << 20, "gb": 10**9, "mb": 10**6, "g": 1 << 30, "m": 1 << 20}
# The chip of a device that is given by its memory size alone.
_TYPICAL = _chip(108, 8, 0)


def device_names() -> list[str]:
    return [device.name for device in _DEVICES]


def find_device(name: str) -> Device:
    plain = name.strip().lower().replace("-", "_").replace(" ", "_").removeprefix("nvidia_").removeprefix("geforce_")
    plain = _OTHER_NAMES.get(plain, plain)
    if plain in _BY_NAME:
        return _BY_NAME[plain]
    if plain == "this":
        import torch

        if not torch.cuda.is_available():
            raise InputError("there is no CUDA device here: name one with --on, such as h200 or 24GiB")
        facts = torch.cuda.get_device_properties(0)
        threads = getattr(facts, "max_threads_per_multi_processor", 2048)
        chip = Chip(facts.multi_processor_count, (facts.major, facts.minor), threads)
        return Device("this", facts.name, facts.total_memory, chip, total_bytes=facts.total_memory)
    size = _SIZE.fullmatch(name.strip())
    if size is not None:
        nbytes = int(float(size[1]) * _UNITS[size[2].lower()])
        return Device(name.strip(), name.strip(), nbytes, _TYPICAL, note="as given; kernels as on an A100")
    near = difflib.get_close_matches(plain, _BY_NAME, 3, 0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(device_names())}."
    raise UsageError(f"no device '{name}'; {hint} A size such as 24GiB works too, and 'this' means this machine's GPU")


def split_names(asked: str | Iterable[str]) -> list[str]:
    """`"h200,l4"`, or several of those, as single names."""
    texts = [asked] if isinstance(asked, str) else asked
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


def find_devices(asked: str | Iterable[str]) -> list[Device]:
    found = [find_device(name) for name in split_names(asked)]
    if not found:
        raise UsageError("no device: give one with on= or --on, such as h200, rtx4090 or 24GiB")
    return found
