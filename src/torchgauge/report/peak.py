"""The peak of activation memory and where it is."""

from __future__ import annotations

from dataclasses import dataclass

from torchgauge.facts import OpRecord, View


@dataclass(frozen=True, slots=True)
class Peak:
    """`op` is None where the inputs alone are the peak."""

    activation_bytes: int
    op: OpRecord | None

    @property
    def place(self) -> str:
        if self.op is None:
            return "the inputs"
        return f"{self.op.op} (op {self.op.index}) in {self.op.module or 'the model itself'}"


def find_peak(view: View) -> Peak:
    op = max(view.capture.ops, key=lambda op: op.live_bytes, default=None)
    total = view.totals.peak_activation_bytes
    return Peak(total, op if op is not None and op.live_bytes == total else None)
