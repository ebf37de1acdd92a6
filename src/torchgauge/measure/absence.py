"""A quantity that is not available here, and why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Absent:
    """Takes the place of a value that cannot be read on this machine."""

    reason: str
