"""The parts of the page: one file each, data only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchgauge.lazy import lazy_names

if TYPE_CHECKING:
    from torchgauge.report.page.parts.memory import live_at_peak

__all__ = ["live_at_peak"]

_HOMES = {
    "memory": ("live_at_peak",),
}  # fmt: skip
__getattr__ = lazy_names(__name__, _HOMES)
