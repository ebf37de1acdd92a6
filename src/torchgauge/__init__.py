"""Everything worth knowing about a PyTorch model.

The names below load on first use, so that `import torchgauge` and `torchgauge --help` do not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchgauge.analysis import (
        Analysis,
        Comparison,
        Fit,
        Forecast,
        Llm,
        WeightScan,
        analyze,
        compare,
        fit,
        forecast,
        llm,
        load,
        scan_weights,
    )
    from torchgauge.cost import Call, Work, formula
    from torchgauge.errors import (
        FormatError,
        ForwardError,
        InputError,
        LimitError,
        MissingDependencyError,
        TargetError,
        TorchgaugeError,
        UnpicklingWarning,
        UsageError,
    )

__version__ = "1.0.0"

__all__ = [
    "Analysis", "Call", "Comparison", "Fit", "Forecast", "FormatError", "ForwardError", "InputError", "LimitError",
    "Llm", "MissingDependencyError", "TargetError", "TorchgaugeError", "UnpicklingWarning", "UsageError",
    "WeightScan", "Work", "__version__", "analyze", "compare", "fit", "forecast", "formula", "llm", "load",
    "scan_weights",
]  # fmt: skip

_HOMES = {
    "analysis": (
        "Analysis", "Comparison", "Fit", "Forecast", "Llm", "WeightScan", "analyze", "compare", "fit", "forecast",
        "llm", "load", "scan_weights",
    ),
    "cost": ("Call", "Work", "formula"),
    "errors": (
        "FormatError", "ForwardError", "InputError", "LimitError", "MissingDependencyError", "TargetError",
        "TorchgaugeError", "UnpicklingWarning", "UsageError",
    ),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    from torchgauge.registry import lazy_names  # half of the time of `import torchgauge`

    return lazy_names(__name__, _HOMES)(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
