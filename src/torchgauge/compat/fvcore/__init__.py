"""The interface of fvcore's counters: `from torchgauge.compat.fvcore.nn import FlopCountAnalysis`.

One FLOP is one multiply-add there; see docs/migrating/fvcore.md for what changes in the numbers.
"""

from torchgauge.compat.fvcore.nn import ActivationCountAnalysis, FlopCountAnalysis, activation_count, flop_count

__all__ = ["ActivationCountAnalysis", "FlopCountAnalysis", "activation_count", "flop_count"]
