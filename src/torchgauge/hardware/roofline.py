"""What bounds an op: the device's arithmetic, its memory, or the time it takes to launch anything.

The model is that of Williams, Waterman and Patterson, "Roofline: an insightful visual performance model" (CACM 52, 4).
"""

from __future__ import annotations

from dataclasses import dataclass

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
        """No implementation on this device is faster."""
        return max(flops / self.flops_per_s, nbytes / self.bytes_per_s)

    def attainable(self, intensity: float) -> float:
        """Operations per second that an op of this intensity can reach."""
        return min(self.flops_per_s, intensity * self.bytes_per_s)

    def bound(self, flops: float, nbytes: float) -> str | None:
        """None for an op that neither computes nor moves anything."""
        if not flops and not nbytes:
            return None
        return COMPUTE if flops / self.flops_per_s >= nbytes / self.bytes_per_s else MEMORY
