"""Peak rates and bandwidth by the exact name of a device. An unknown device stays unknown."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

# What the rates of a type are called in the table, by torch's name of the type.
_RATE_NAMES: Mapping[str, str] = {
    "float8_e4m3fn": "float8", "float8_e5m2": "float8", "float8_e4m3fnuz": "float8", "float8_e5m2fnuz": "float8",
    "uint8": "int8", "qint8": "int8", "quint8": "int8", "complex64": "float32", "complex128": "float64",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Peaks:
    """Peak rates of a device. `flops_per_s` by type; `source` is where the figures come from."""

    name: str
    flops_per_s: Mapping[str, float] = field(default_factory=dict)
    bytes_per_s: float | None = None
    watts: float | None = None
    source: str = ""

    def rate(self, dtype: str | None, *, tf32: bool = False) -> float | None:
        """Operations per second in a type by torch's name; None where it is not known."""
        if dtype is None:
            return None
        if dtype == "float32" and tf32:
            return self.flops_per_s.get("tf32", self.flops_per_s.get("float32"))
        return self.flops_per_s.get(_RATE_NAMES.get(dtype, dtype))


def published_peaks(name: str) -> Peaks | None:
    """The peaks of a device by the name its driver gives."""
    return _table().get(_plain(name))


def known_devices() -> list[str]:
    return sorted({peaks.name for peaks in _table().values()})


@cache
def _table() -> dict[str, Peaks]:
    table: dict[str, Peaks] = {}
    for name, row in tomllib.loads((Path(__file__).parent / "devices.toml").read_text(encoding="utf-8")).items():
        peaks = Peaks(
            name=name,
            flops_per_s={dtype: rate * 1e12 for dtype, rate in row.get("tflops", {}).items()},
            bytes_per_s=row["bandwidth"] * 1e9,
            watts=row.get("power"),
            source=row["source"],
        )
        for spelling in (name, *row.get("names", ())):
            if _plain(spelling) in table:
                raise ValueError(f"the device '{spelling}' is listed twice")
            table[_plain(spelling)] = peaks
    return table


def _plain(name: str) -> str:
    """Drivers differ in case and spaces, never in the part's number."""
    return " ".join(name.lower().split())
