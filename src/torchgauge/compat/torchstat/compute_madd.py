"""The place of `compute_madd` in torchstat."""

from torchgauge.compat.torchstat.formulas import compute_madd

__all__ = ["compute_madd"]
