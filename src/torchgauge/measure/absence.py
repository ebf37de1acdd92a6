"""A quantity that is not available here, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NotRequired, TypedDict


@dataclass(frozen=True, slots=True)
class Absent:
    """Takes the place of a value that cannot be read on this machine."""

    reason: str


class Instrument(TypedDict):
    """A sensor, counter, meter or barrier as `torchgauge system` lists it: what it resolves, or why it is missing."""

    name: str
    available: bool
    reason: str | None
    device: NotRequired[str]
    unit: NotRequired[str]
    source: NotRequired[str]
    update_period_s: NotRequired[float | None]
    resolution: NotRequired[float | None]
    resolution_unit: NotRequired[str]
    prevents: NotRequired[str]
