"""The place of `compute_memory` in torchstat."""

from torchgauge.compat.torchstat.formulas import compute_memory

__all__ = ["compute_memory"]
