"""Everything worth knowing about a PyTorch model.

The names below load on first use, so that `import torchgauge` and `torchgauge --help` do not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchgauge.analysis import Analysis, Comparison, WeightScan, analyze, compare, load, scan_weights
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

__version__ = "0.1.0"

__all__ = [
    "Analysis",
    "Call",
    "Comparison",
    "FormatError",
    "ForwardError",
    "InputError",
    "LimitError",
    "MissingDependencyError",
    "TargetError",
    "TorchgaugeError",
    "UnpicklingWarning",
    "UsageError",
    "WeightScan",
    "Work",
    "__version__",
    "analyze",
    "compare",
    "formula",
    "load",
    "scan_weights",
]

_HOMES = {
    "torchgauge.analysis": ("Analysis", "Comparison", "WeightScan", "analyze", "compare", "load", "scan_weights"),
    "torchgauge.cost": ("Call", "Work", "formula"),
    "torchgauge.errors": (
        "FormatError",
        "ForwardError",
        "InputError",
        "LimitError",
        "MissingDependencyError",
        "TargetError",
        "TorchgaugeError",
        "UnpicklingWarning",
        "UsageError",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'torchgauge' has no attribute '{name}'")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
