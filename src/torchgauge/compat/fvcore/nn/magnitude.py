"""Counts as people read them: 4.32G, 9.4K."""

from __future__ import annotations

_UNITS = {"P": 1e15, "T": 1e12, "G": 1e9, "M": 1e6, "K": 1e3}


def scaled(count: float, units: str = "PTGMK") -> tuple[float, str]:
    """The count in the largest of the units of which it is more than a tenth; without a unit where there is none."""
    unit = next((unit for unit in units if abs(count) > _UNITS[unit] / 10), "")
    return count / _UNITS.get(unit, 1), unit
