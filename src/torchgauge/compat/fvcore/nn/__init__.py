"""The counting functions of `fvcore.nn`."""

from torchgauge.compat.fvcore.nn.activation_count import ActivationCountAnalysis, activation_count
from torchgauge.compat.fvcore.nn.flop_count import FlopCountAnalysis, flop_count
from torchgauge.compat.fvcore.nn.parameter_count import parameter_count, parameter_count_table
from torchgauge.compat.fvcore.nn.print_model_statistics import flop_count_str, flop_count_table

__all__ = [
    "ActivationCountAnalysis", "FlopCountAnalysis", "activation_count", "flop_count", "flop_count_str",
    "flop_count_table", "parameter_count", "parameter_count_table",
]  # fmt: skip
