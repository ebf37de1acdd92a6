"""The Python API: `analyze` ties the layers together, `Analysis` holds the result, `load` reads a saved one.

The names load on first use, and nothing here imports torch until a model is analysed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchgauge.registry import lazy_names

if TYPE_CHECKING:
    from torchgauge.analysis.advice import ModelInMemory
    from torchgauge.analysis.budgets import analysis_options, check, read_budgets
    from torchgauge.analysis.comparison import Comparison, compare, is_saved_run
    from torchgauge.analysis.device_list import KnownDevice, devices
    from torchgauge.analysis.fitting import Fit, fit
    from torchgauge.analysis.forecasting import Forecast, forecast
    from torchgauge.analysis.language import Llm, llm
    from torchgauge.analysis.methods import is_read_otherwise
    from torchgauge.analysis.pipeline import analyze
    from torchgauge.analysis.result import Analysis, WeightScan, load
    from torchgauge.analysis.token_flops import flops_per_token, mfu
    from torchgauge.analysis.weight_scan import scan_weights

__all__ = [
    "Analysis", "Comparison", "Fit", "Forecast", "KnownDevice", "Llm", "ModelInMemory", "WeightScan",
    "analysis_options", "analyze", "check", "compare", "devices", "fit", "flops_per_token", "forecast",
    "is_read_otherwise", "is_saved_run", "llm", "load", "mfu", "read_budgets", "scan_weights",
]  # fmt: skip

_HOMES = {
    "advice": ("ModelInMemory",),
    "pipeline": ("analyze",),
    "budgets": ("analysis_options", "check", "read_budgets"),
    "comparison": ("Comparison", "compare", "is_saved_run"),
    "device_list": ("KnownDevice", "devices"),
    "fitting": ("Fit", "fit"),
    "forecasting": ("Forecast", "forecast"),
    "language": ("Llm", "llm"),
    "methods": ("is_read_otherwise",),
    "result": ("Analysis", "WeightScan", "load"),
    "token_flops": ("flops_per_token", "mfu"),
    "weight_scan": ("scan_weights",),
}  # fmt: skip
__getattr__ = lazy_names(__name__, _HOMES)
