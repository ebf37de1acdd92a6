"""The place of `compute_flops` in torchstat."""

from torchgauge.compat.torchstat.formulas import compute_flops

__all__ = ["compute_flops"]
