"""Devices by the names that people give them: their memory, and the properties that determine the kernels.

All are entries of `hardware/devices.toml`, beside this machine's GPU and plain sizes.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache

from torchgauge.errors import InputError, UsageError
from torchgauge.hardware import Listed, listed_devices

GIB = 1 << 30
_THREADS = {(7, 5): 1024, (8, 6): 1536, (8, 9): 1536, (12, 0): 1536}


@dataclass(frozen=True, slots=True)
class Chip:
    """The properties of a GPU that decide about the memory of kernels."""

    multiprocessors: int
    capability: tuple[int, int]
    threads_per_multiprocessor: int = 2048

    @property
    def cublas_bytes(self) -> int:
        """`parseChosenWorkspaceSize` of aten/src/ATen/cuda/CublasHandlePool.cpp: one per thread and stream that calls
        cuBLAS, never released."""
        return 32 << 20 if self.capability[0] >= 9 else 4096 * 1024 * 2 + 16 * 1024 * 8


# The chip whose kernels are assumed for a device that is given by its memory size alone, or is not NVIDIA's.
_TYPICAL = Chip(108, (8, 0))


@dataclass(frozen=True, slots=True)
class Device:
    """`listed` is its entry in the table; None for this machine's GPU and for a size."""

    name: str
    title: str
    nominal_bytes: int
    chip: Chip
    reserved_share: float = 0.02
    total_bytes: int | None = None
    note: str = ""
    listed: Listed | None = field(default=None, compare=False, repr=False)

    @property
    def capacity_bytes(self) -> int:
        return self.total_bytes if self.total_bytes is not None else int(self.nominal_bytes * (1 - self.reserved_share))

    @property
    def capacity_source(self) -> str:
        if self.note:
            return self.note
        if self.total_bytes is not None:
            return "total that CUDA reports, measured"
        size, share = f"{self.nominal_bytes / GIB:.0f} GiB", f"{self.reserved_share * 100:.0f} %"
        if self.listed is not None and self.listed.is_shared:
            return f"{size} shared with the processor, less {share} that the GPU does not get"
        return f"nominal {size} less {share} that the driver reserves"

    @property
    def is_measured(self) -> bool:
        """Whether predictions of memory for this kind of chip were compared with a real one."""
        return self.chip.capability == (9, 0)

    @property
    def has_cuda(self) -> bool:
        """Whether the kernels that predictions of memory assume run there."""
        return self.listed is None or self.listed.capability is not None

    @property
    def margin_times(self) -> int:
        """How much wider the bounds of its memory are than those of a chip that was compared with a real one."""
        return 1 if self.is_measured else 2 if self.has_cuda else 4

    @classmethod
    def of(cls, listed: Listed) -> Device:
        capability = listed.capability
        chip = replace(_TYPICAL, multiprocessors=listed.multiprocessors)
        if capability is not None:
            chip = Chip(listed.multiprocessors, capability, _THREADS.get(capability, 2048))
        return cls(
            listed.short, listed.title, listed.memory_bytes, chip, listed.reserved_share, listed.total_bytes,
            listed=listed,
        )  # fmt: skip


@cache
def _devices() -> dict[str, Device]:
    """The listed devices by short name, in the order of the table."""
    return {listed.short: Device.of(listed) for listed in listed_devices()}


def device_names() -> list[str]:
    """The devices whose memory and time can be predicted."""
    return [listed.short for listed in listed_devices() if "float32" in listed.peaks.flops_per_s]


def known_devices() -> list[Device]:
    """All of the table; of some only the memory can be predicted."""
    return [*_devices().values()]


# Words of makers and series: "NVIDIA GeForce RTX 4090", "rtx4090" and "4090" are one device.
_WORDS = re.compile(r"nvidia|geforce|tesla|amd|radeon|instinct|intel|apple|graphics|gpu|\((?:r|tm)\)")
_SERIES = re.compile(r"^(?:rtx|rx|gtx)(?=[a-z]?\d)")
# A size at the end of a name ("A100-SXM4-80GB"), or before the kind of memory ("H100 80GB HBM3").
_NAMED_SIZE = re.compile(r"(?<!\d)(\d+)\s*gi?b(?=$|[\s_-])")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(gib|gb|mib|mb|g|m)b?", re.IGNORECASE)
_UNITS = {"gib": 1 << 30, "mib": 1 << 20, "gb": 10**9, "mb": 10**6, "g": 1 << 30, "m": 1 << 20}
_SEVERAL = re.compile(r"(?:(\d+)\s*[x×*]\s*(?P<device>.+)|(?P<first>.+?)\s*[x×*]\s*(\d+))", re.IGNORECASE)


def _spelled(name: str) -> tuple[str, int | None]:
    """A name without what people leave out, and the size in GB that it has in it."""
    plain = name.strip().lower()
    size = _NAMED_SIZE.search(plain)
    if size is not None:
        plain = plain[: size.start()] + plain[size.end() :]
    plain = re.sub(r"[^a-z0-9]|hbm\d?e?", "", _WORDS.sub(" ", plain))
    return _SERIES.sub("", plain), None if size is None else int(size[1])


@cache
def _by_spelling() -> dict[str, list[Device]]:
    found: dict[str, list[Device]] = {}
    for device in _devices().values():
        assert device.listed is not None
        for spelling in dict.fromkeys(_spelled(one)[0] for one in device.listed.spellings):
            found.setdefault(spelling, []).append(device)
    return found


def _of_size(devices: Iterable[Device], size_gb: int | None) -> Iterator[Device]:
    """Those with so much memory, in GB or GiB; a size of memory that is shared may be any up to the largest."""
    for device in devices:
        if size_gb is None or any(abs(size_gb * unit / device.nominal_bytes - 1) < 0.06 for unit in (10**9, GIB)):
            yield device
        elif device.listed is not None and device.listed.is_shared and 0 < size_gb * GIB < device.nominal_bytes:
            yield replace(device, nominal_bytes=size_gb * GIB)


def _find_listed(name: str) -> Device | None:
    spelling, size_gb = _spelled(name)
    known = _by_spelling().get(spelling, [])
    exact = _devices().get(re.sub(r"[\s-]+", "_", name.strip().lower()))
    if exact is not None:
        return exact
    found = next(_of_size(known, size_gb), None)
    if found is None and known:
        sizes = " or ".join(f"{device.nominal_bytes / GIB:.0f} GiB" for device in known)
        raise UsageError(f"no '{known[0].title}' has {size_gb} GB of memory; it has {sizes}")
    return found


def find_device(name: str) -> Device:
    found = _find_listed(name)
    if found is not None:
        return found
    if name.strip().lower() == "this":
        return _this_device()
    size = _SIZE.fullmatch(name.strip())
    if size is not None:
        nbytes = int(float(size[1]) * _UNITS[size[2].lower()])
        return Device(name.strip(), name.strip(), nbytes, _TYPICAL, note="as given; kernels as on an A100")
    several = _SEVERAL.fullmatch(name.strip())
    single = None if several is None else _find_listed(several["device"] or several["first"])
    if single is not None:
        raise UsageError(f"'{name}': predictions are for one GPU only so far; give '{single.name}'")
    raise UsageError(
        f"no device '{name}'; {_hint(name)} A size such as 24GiB works too, and 'this' means this machine's GPU"
    )


def _hint(name: str) -> str:
    """Names of the table that the one asked for may be a slip of. Those with other digits are other devices."""
    spelling = _spelled(name)[0]
    digits = re.sub(r"\D", "", spelling)
    alike = {known: devices[0].name for known, devices in _by_spelling().items() if re.sub(r"\D", "", known) == digits}
    near = dict.fromkeys(alike[known] for known in difflib.get_close_matches(spelling, alike, 3, 0.7) if digits)
    return f"did you mean {' or '.join(near)}?" if near else "torchgauge devices lists those that are known."


def _this_device() -> Device:
    import torch

    if not torch.cuda.is_available():
        raise InputError("there is no CUDA device here: name one with --on, such as h200 or 24GiB")
    facts = torch.cuda.get_device_properties(0)
    threads = getattr(facts, "max_threads_per_multi_processor", 2048)
    chip = Chip(facts.multi_processor_count, (facts.major, facts.minor), threads)
    return Device("this", facts.name, facts.total_memory, chip, total_bytes=facts.total_memory)


def split_names(asked: str | Iterable[str]) -> list[str]:
    """`"h200,l4"`, or several of those, as single names."""
    texts = [asked] if isinstance(asked, str) else asked
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


def find_devices(asked: str | Iterable[str]) -> list[Device]:
    found = [find_device(name) for name in split_names(asked)]
    if not found:
        raise UsageError("no device: give one with on= or --on, such as h200, rtx4090 or 24GiB")
    return found
