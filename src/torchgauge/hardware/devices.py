"""Peak rates and bandwidth of a device: published, by its exact name, else measured on this machine and remembered. An
unknown device stays unknown.

The roofline says what bounds an op: the device's arithmetic, its memory, or the time it takes to launch anything
(Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", CACM 52, 4).
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from torchgauge.cache import cache_folder, replace_file
from torchgauge.errors import TorchgaugeError

# Names of the rates in the table, by torch's name of the type.
_RATE_NAMES: Mapping[str, str] = {
    "float8_e4m3fn": "float8", "float8_e5m2": "float8", "float8_e4m3fnuz": "float8", "float8_e5m2fnuz": "float8",
    "uint8": "int8", "qint8": "int8", "quint8": "int8", "complex64": "float32", "complex128": "float64",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pace:
    """Times of single ops on a processor, in seconds: the call of one that does nothing, a small depthwise
    convolution, and an element of tanh (a function of MKL), of GELU (vector code) and of std (none). `bytes_per_s` is
    the rate of a pass over tensors by the bytes that it reads and writes: passes within a cache are faster."""

    call_s: float
    depthwise_s: float
    tanh_s: float
    gelu_s: float
    std_s: float
    bytes_per_s: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Peaks:
    """Peak rates of a device. `flops_per_s` by type; `source` is where the figures come from. `pace` is known of
    processors that were measured."""

    name: str
    flops_per_s: Mapping[str, float] = field(default_factory=dict)
    bytes_per_s: float | None = None
    watts: float | None = None
    source: str = ""
    pace: Pace | None = None

    def rate(self, dtype: str | None, *, tf32: bool = False) -> float | None:
        """Operations per second in a type by torch's name; None where it is not known."""
        if dtype is None:
            return None
        if dtype == "float32" and tf32:
            return self.flops_per_s.get("tf32", self.flops_per_s.get("float32"))
        return self.flops_per_s.get(_RATE_NAMES.get(dtype, dtype))

    @property
    def threads(self) -> int | None:
        """The number of threads a processor was measured with, from its note; None for published rates."""
        found = re.search(r"(\d+) threads?\b", self.source)
        return None if found is None else int(found[1])


@dataclass(frozen=True, slots=True)
class Listed:
    """An entry of `devices.toml`, which describes the fields; memory in bytes."""

    short: str
    spellings: tuple[str, ...]
    title: str
    memory_bytes: int
    total_bytes: int | None
    reserved_share: float
    is_shared: bool
    multiprocessors: int
    capability: tuple[int, int] | None
    tables: str | None
    similar_tables: str | None
    peaks: Peaks


def published_peaks(name: str) -> Peaks | None:
    """The peaks of a device by the name its driver gives."""
    found = _table().get(_plain(name))
    return None if found is None else found.peaks


def known_devices() -> list[str]:
    return sorted(device.peaks.name for device in listed_devices())


def listed_devices() -> list[Listed]:
    """In the order of the file."""
    return [*{id(device): device for device in _table().values()}.values()]


@cache
def _table() -> dict[str, Listed]:
    table: dict[str, Listed] = {}
    for name, row in tomllib.loads((Path(__file__).parent / "devices.toml").read_text(encoding="utf-8")).items():
        device = _listed(name, row)
        for spelling in (name, *row.get("names", ())):
            if _plain(spelling) in table:
                raise ValueError(f"the device '{spelling}' is listed twice")
            table[_plain(spelling)] = device
    return table


def _listed(name: str, row: Mapping[str, Any]) -> Listed:
    peaks = Peaks(
        name=name,
        flops_per_s={dtype: rate * 1e12 for dtype, rate in row.get("tflops", {}).items()},
        bytes_per_s=row["bandwidth"] * 1e9,
        watts=row.get("power"),
        source=row["source"],
    )
    capability = row.get("capability")
    return Listed(
        short=row["short"],
        spellings=(row["short"], *row.get("spellings", ()), row.get("title", name), name, *row.get("names", ())),
        title=row.get("title", name),
        memory_bytes=row["memory"],
        total_bytes=row.get("total"),
        reserved_share=row.get("reserved", 0.02),
        is_shared=row.get("is_shared", False),
        multiprocessors=row["multiprocessors"],
        capability=None if capability is None else (capability[0], capability[1]),
        tables=row.get("tables"),
        similar_tables=row.get("similar_tables"),
        peaks=peaks,
    )


def _plain(name: str) -> str:
    """Drivers differ in case and spaces, never in the part's number."""
    return " ".join(name.lower().split())


FILE = "calibration.json"


def remembered(device: str) -> Peaks | None:
    """The rates measured on a device of this name; None where `torchgauge system --calibrate` has not been run."""
    row = _read().get(device)
    if not isinstance(row, Mapping):
        return None
    try:
        rates = {str(dtype): _rate(rate) for dtype, rate in dict(row["flops_per_s"]).items()}
        pace = None
        # Older versions did not measure it.
        if (known := row.get("pace")) is not None:
            seconds = {key: _rate(known[key]) for key in ("call_s", "depthwise_s", "tanh_s", "gelu_s", "std_s")}
            passes = {int(size): _rate(rate) for size, rate in dict(known["bytes_per_s"]).items()}
            pace = Pace(**seconds, bytes_per_s=passes)
        return Peaks(device, rates, _rate(row["bytes_per_s"]), None, f"measured {row['measured']}", pace)
    except (KeyError, TypeError, ValueError):
        return None


def _rate(value: Any) -> float:
    rate = float(value)
    if not 0 < rate < math.inf:
        raise ValueError(f"no rate: {value}")
    return rate


def remember(
    device: str, flops_per_s: Mapping[str, float], bytes_per_s: float, measured: str, pace: Pace | None = None
) -> Path:
    """Keep the rates of a device; `measured` says when and with what. The file is written whole or not at all."""
    rates: dict[str, Any] = {"flops_per_s": dict(flops_per_s), "bytes_per_s": bytes_per_s, "measured": measured}
    if pace is not None:
        rates["pace"] = asdict(pace)
    path = cache_folder() / FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(_read() | {device: rates}, indent=1).encode())
    except OSError as error:
        raise TorchgaugeError(f"cannot save the rates in '{path}': {error.strerror or error}") from error
    return path


def _read() -> dict[str, Any]:
    """The saved rates; a missing or corrupt file counts as empty, because it can be written again."""
    try:
        found = json.loads((cache_folder() / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


# Apple gives the processor and its GPU one name: the table holds the GPU's rates, a calibration the processor's.
_PROCESSOR, _APPLE_GPU = "cpu", "mps"


def peaks_of(name: str, kind: str = "cuda") -> Peaks | None:
    """The peaks of a device by its driver's name; `kind` is torch's type of the device. None if unknown."""
    published = None if kind == _PROCESSOR else published_peaks(name)
    if published is not None or kind == _APPLE_GPU:
        return published
    return remembered(name)


COMPUTE, MEMORY, LAUNCH = "compute", "memory", "launch"


@dataclass(frozen=True, slots=True)
class Roof:
    """A device's two limits, for one type of number."""

    flops_per_s: float
    bytes_per_s: float

    @property
    def ridge(self) -> float:
        """The arithmetic intensity (operations per byte) from which on arithmetic is the limit."""
        return self.flops_per_s / self.bytes_per_s

    def least_seconds(self, flops: float, nbytes: float) -> float:
        """The least time of any implementation on this device."""
        return max(flops / self.flops_per_s, nbytes / self.bytes_per_s)

    def attainable(self, intensity: float) -> float:
        """Operations per second that an op of this intensity can reach."""
        return min(self.flops_per_s, intensity * self.bytes_per_s)

    def bound(self, flops: float, nbytes: float) -> str | None:
        """None for an op that neither computes nor moves anything."""
        if not flops and not nbytes:
            return None
        return COMPUTE if flops / self.flops_per_s >= nbytes / self.bytes_per_s else MEMORY
