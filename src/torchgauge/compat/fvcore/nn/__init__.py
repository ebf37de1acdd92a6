"""What `fvcore.nn` exports for counting operations."""

from torchgauge.compat.fvcore.nn.activation_count import ActivationCountAnalysis, activation_count
from torchgauge.compat.fvcore.nn.flop_count import FlopCountAnalysis, flop_count

__all__ = ["ActivationCountAnalysis", "FlopCountAnalysis", "activation_count", "flop_count"]
