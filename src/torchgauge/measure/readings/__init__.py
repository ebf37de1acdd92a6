"""What the sampler can read: one file per source. A quantity can be read again and again; one that cannot says why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil

from torchgauge.measure.absence import Absent

# What a counter counts, by the unit of its rate.
_COUNTED_IN = {"share": "s", "cores": "s", "1/s": "", "B/s": "B"}
# One number, or one for every label.
Value = float | tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Quantity:
    """`read` gives the value now; of a counter, which only grows, what is shown is its rate.

    The name carries the unit of what is shown. `update_s` is how often the source itself changes, `resolution` the
    smallest step it can show, in the unit of what is read; None if unknown.
    """

    name: str
    unit: str
    read: Callable[[], Value | Absent]
    source: str
    is_counter: bool = False
    labels: tuple[str, ...] = ()
    is_averaged: bool = False  # the mean over the labels means something
    update_s: float | None = None
    resolution: float | None = None

    def offer(self) -> dict[str, Any]:
        """What it can resolve, or why it cannot be read here."""
        now = read_now(self)
        return {
            "name": self.name,
            "unit": self.unit,
            "source": self.source,
            "available": not isinstance(now, Absent),
            "reason": now.reason if isinstance(now, Absent) else None,
            "update_period_s": self.update_s,
            "resolution": self.resolution,
            "resolution_unit": _COUNTED_IN[self.unit] if self.is_counter else self.unit,
        }


def read_now(quantity: Quantity) -> Value | Absent:
    try:
        return quantity.read()
    # What psutil raises where the system does not say, or does not let us read.
    except (OSError, NotImplementedError, psutil.Error) as error:
        return Absent(f"{quantity.source}: {error}" if str(error) else f"{quantity.source} reports no value")
