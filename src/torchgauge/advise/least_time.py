"""The least time of ops by the roofline of their device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torchgauge.facts import OpRecord
from torchgauge.hardware import Peaks, Roof

# torch has a switch for matmuls and another for cuDNN's convolutions and RNNs.
_CUDNN = ("convolution", "recurrent")


@dataclass(frozen=True, slots=True)
class LeastTime:
    """`matmul_tf32` and `convolution_tf32`: whether float32 products may run in TF32."""

    peaks: Peaks
    matmul_tf32: bool = False
    convolution_tf32: bool = True

    def of(self, op: OpRecord) -> float:
        """Seconds; 0 where the device's rate for the type is not known."""
        return self._seconds(op, self._rate(op), 1.0)

    def rate_of(self, op: OpRecord) -> float:
        """FLOP/s at most; that of float32 for all but products (rates of narrow types are those of units for products),
        and where the rate for the type is not known."""
        rates = self.peaks.flops_per_s.values()
        known = self._rate(op) if op.cost.macs else None
        return known or self.peaks.rate("float32") or max(rates, default=1.0)

    def in_bfloat16(self, op: OpRecord) -> float:
        """With half of the bytes of float32."""
        return self._seconds(op, self.peaks.rate("bfloat16"), 0.5)

    def whole(self, ops: Iterable[OpRecord]) -> float:
        return sum(map(self.of, ops))

    def _rate(self, op: OpRecord) -> float | None:
        allowed = self.convolution_tf32 if op.category in _CUDNN else self.matmul_tf32
        return self.peaks.rate(op.signature.dtype, tf32=allowed and op.cost.macs > 0)

    def _seconds(self, op: OpRecord, rate: float | None, width: float) -> float:
        cost, bandwidth = op.signature.cost, self.peaks.bytes_per_s
        if not rate or not bandwidth:
            return 0.0
        return Roof(rate, bandwidth).least_seconds(cost.flops, width * (cost.bytes_read + cost.bytes_written))
