"""A quantity that is not available here, and why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Absent:
    """Stands where a value would: what was asked for cannot be read on this machine."""

    reason: str
